-- Give back what a worker holds, which ends in order.
for _, one in ipairs(A.leases) do
  local request = held(one[1], one[2])
  if request then
    release(one[1], request)
  end
end
