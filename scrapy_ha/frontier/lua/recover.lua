-- Take back what a worker of this name held: part of all that is leased, from a rank on.
local ids = call('ZRANGE', LEASED, A.at, A.at + A.limit - 1)
local kept, ready, dead = 0, 0, {}
for _, id in ipairs(ids) do
  local request = get(id)
  if request[WORKER] ~= A.worker then
    kept = kept + 1
  elseif take_back(id, request) then
    dead[#dead + 1] = id
  else
    ready = ready + 1
  end
end
return {#ids == A.limit and A.at + kept or -1, ready, dead}
