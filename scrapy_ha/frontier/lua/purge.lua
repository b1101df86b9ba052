-- Remove dead requests. Identities of their children stand in KEYS, in the same order.
local done = 0
for i, id in ipairs(A.ids) do
  local request = get(id)
  if request and request[STATUS] == 'x' then
    remove(id)
    call('DEL', KEYS[17 + i])
    done = done + 1
  end
end
return done
