-- Take back some of the leases that have expired.
local ready, dead = 0, 0
for _, id in ipairs(call('ZRANGEBYSCORE', LEASED, '-inf', score(NOW), 'LIMIT', 0, A.limit)) do
  if take_back(id, get(id)) then
    dead = dead + 1
  else
    ready = ready + 1
  end
end
return {ready, dead}
