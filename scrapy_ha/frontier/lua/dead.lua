-- Records of what was given up, by id: id, slot, payload, record or how often it was in flight, time, pending.
local found = {}
for _, id in ipairs(call('ZRANGEBYSCORE', RECORDED, '(' .. A.after, '+inf', 'LIMIT', 0, A.limit)) do
  local request = get(id)
  local record = cmsgpack.unpack(call('HGET', RECORDS, id))
  local poison = type(record[1]) == 'table'
  for _, value in ipairs({
    id, call('HGET', NAMES, request[SLOT]), record[2], poison and '' or record[1],
    poison and record[1][1] or -1, score(record[3]), request[STATUS] == 'x' and 0 or 1,
  }) do
    found[#found + 1] = value
  end
end
return found
