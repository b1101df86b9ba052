-- Hand out requests that are due: of the least busy slots, in turn.
promote()
local found = {}
local suspect = call('ZCOUNT', ACTIVE, '(' .. score(NOW - A.patience), '+inf') > 0

local function numbers(names)
  if #names == 0 then
    return {}
  end
  return call('HMGET', SLOTS, unpack(names))
end

local load, full, sample = {}, {}, {}
for at = 1, #A.full, 1000 do
  for _, slot in ipairs(numbers({unpack(A.full, at, math.min(at + 999, #A.full))})) do
    if slot then full[slot] = true end
  end
end
for _, slot in ipairs(numbers(A.sample)) do
  if slot then sample[slot] = true end
end
for i, slot in ipairs(numbers(A.busy)) do
  if slot then load[slot] = A.loads[i] end
end

-- The first that may be handed out of *slot*, and whether it is a suspect.
local function first(slot)
  local ready = head(READY, slot)
  local doubtful = not suspect and head(SUSPECTS, slot)
  if doubtful and (not ready or doubtful < ready) then
    return doubtful, true
  end
  if ready and sample[slot] then
    local upper = string.sub(ready, 1, 12)
    local count = call('ZLEXCOUNT', READY, '[' .. upper, '[' .. upper .. string.rep('\255', 9))
    local chosen = math.floor(A.random * math.min(count, 1000))
    ready = call('ZRANGEBYLEX', READY, '[' .. upper, '[' .. upper .. string.rep('\255', 9), 'LIMIT', chosen, 1)[1]
  end
  return ready, false
end

-- Slots with something to hand out: all of the busy ones, and as many idle ones as may be needed.
local candidates, idle = {}, 0
local at = 0
while idle < A.limit do
  local some = call('ZRANGE', TURNS, at, at + 199, 'WITHSCORES')
  for i = 1, #some, 2 do
    local slot = some[i]
    if not full[slot] and (load[slot] or 0) == 0 and idle < A.limit and first(slot) then
      candidates[#candidates + 1] = {slot, 0, tonumber(some[i + 1])}
      idle = idle + 1
    end
  end
  if #some < 400 then break end
  at = at + 200
end
for slot, loaded in pairs(load) do
  if loaded > 0 and not full[slot] and first(slot) then
    candidates[#candidates + 1] = {slot, loaded, tonumber(call('HGET', LAST_TURNS, slot) or '0')}
  end
end

while #found < 6 * A.limit and #candidates > 0 do
  local best = 1
  for i = 2, #candidates do
    local one, other = candidates[i], candidates[best]
    if one[2] < other[2] or (one[2] == other[2] and one[3] < other[3]) then
      best = i
    end
  end
  local candidate = candidates[best]
  local slot = candidate[1]
  local taken, doubtful = first(slot)
  if not taken then
    table.remove(candidates, best)
  else
    local id = id_of(taken)
    local request = get(id)
    call('ZREM', doubtful and SUSPECTS or READY, taken)
    request[STATUS], request[DELIVERIES] = 'l', request[DELIVERIES] + 1
    request[TOKEN] = call('HINCRBY', STATE, 'token', 1)
    request[WORKER], request[SINCE], request[EXPOSED] = A.worker, NOW, A.exposed
    put(id, request)
    call('ZADD', LEASED, score(NOW + A.ttl), id)
    if doubtful then
      call('ZADD', ACTIVE, score(NOW), id)
      suspect = true
    end
    local turn = call('HINCRBY', STATE, 'turn', 1)
    call('HSET', LAST_TURNS, slot, turn)
    candidate[2], candidate[3] = candidate[2] + 1, turn
    if head(READY, slot) or head(SUSPECTS, slot) then
      call('ZADD', TURNS, turn, slot)
    else
      call('ZREM', TURNS, slot)
      table.remove(candidates, best)
    end
    for _, value in ipairs({
      id, call('HGET', PAYLOADS, id), call('HGET', NAMES, slot), request[PRIORITY],
      request[DELIVERIES], request[TOKEN],
    }) do
      found[#found + 1] = value
    end
  end
end
return found
