-- Have keys new again: bucket, key, and so on.
local done = 0
for i = 1, #A.seen, 2 do
  if A.seen_seconds then
    done = done + call('HDEL', KEYS[A.seen[i]], A.seen[i + 1])
  else
    done = done + call('SREM', KEYS[A.seen[i]], A.seen[i + 1])
  end
end
return done
