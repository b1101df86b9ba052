-- Dead requests that are to be tried again: id, due, payload or false.
local done = 0
for _, one in ipairs(A.replays) do
  local id = one[1]
  local request = get(id)
  if request and request[STATUS] == 'x' then
    call('ZREM', DEAD, id)
    call('ZREM', DEAD_AT, padded(id))
    if one[3] then
      call('HSET', PAYLOADS, id, one[3])
    end
    request[DELIVERIES], request[UNEXPOSED] = 0, 0
    delay(id, request, one[2])
    done = done + 1
  end
end
return done
