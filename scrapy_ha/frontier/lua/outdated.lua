-- Ids of dead requests that are too many or too old, those given up first in front.
local excess = A.dead_limit and call('ZCARD', DEAD_AT) - A.dead_limit or 0
if A.dead_seconds then
  excess = math.max(excess, call('ZCOUNT', DEAD_AT, '-inf', score(NOW - A.dead_seconds)))
end
if excess <= 0 then
  return {}
end
return call('ZRANGE', DEAD_AT, 0, math.min(excess, A.limit) - 1)
