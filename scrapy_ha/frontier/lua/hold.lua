-- Say of leases that they go on: for how long, exposed or not, or with a record.
local verdicts = {}
for i, one in ipairs(A.leases) do
  local id = one[1]
  local request = held(id, one[2])
  verdicts[i] = request and 1 or 0
  if request then
    if A.ttl then
      call('ZADD', LEASED, score(NOW + A.ttl), id)
    end
    if A.exposed ~= nil then
      request[EXPOSED] = A.exposed
      put(id, request)
    end
    if A.record then
      note(id, A.record)
    end
  end
end
return verdicts
