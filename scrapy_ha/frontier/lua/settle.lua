-- End leases, store children, and keep marks, all in one step.
store(A.children)
for i = 1, #A.seen, 2 do
  if A.seen_seconds then
    call('HSET', KEYS[A.seen[i]], A.seen[i + 1], math.floor(NOW))
  else
    call('SADD', KEYS[A.seen[i]], A.seen[i + 1])
  end
end
for i = 1, #A.marks, 2 do
  if A.marks[i + 1] == '' then
    call('HDEL', MARKS, A.marks[i])
  else
    call('HSET', MARKS, A.marks[i], A.marks[i + 1])
  end
end
if A.seeded then
  call('HSET', STATE, 'seeded', 1)
  call('DEL', KEYS[18])
end
if A.seeded or #A.seen > 0 or #A.marks > 0 then
  call('HSET', STATE, 'begun', 1)
end

for _, one in ipairs(A.exposed) do
  local request = held(one[1], one[2])
  if request then
    request[EXPOSED] = true
    put(one[1], request)
  end
end

-- Settlements are lists: id, token, what becomes of it, payload or false, due or record, rank, priority, identities.
local verdicts = {}
for i, one in ipairs(A.settlements) do
  local id, becomes = one[1], one[3]
  local request = held(id, one[2])
  verdicts[i] = request and 1 or 0
  if request then
    if one[4] then
      call('HSET', PAYLOADS, id, one[4])
    end
    if becomes == 'released' then
      release(id, request)
    elseif becomes == 'retried' then
      unlease(id)
      request[DELIVERIES], request[UNEXPOSED] = 0, 0
      if one[6] then
        request[RANK], request[PRIORITY] = one[6], one[7]
      end
      delay(id, request, one[5])
    else
      unlease(id)
      call('DEL', KEYS[one[8]])
      if becomes == 'dead' then
        kill(id, request, one[5])
      else
        remove(id)
      end
    end
  end
end
return verdicts
