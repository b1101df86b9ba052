-- What all steps have in common. It stands in front of each.
--
-- ARGV[1] is a MessagePack map of arguments. KEYS begin with those of the crawl, in this order; what
-- comes behind them (seen buckets, identities of children, marks) is named by its place in KEYS.
local STATE, REQUESTS, PAYLOADS, RECORDS = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local READY, SUSPECTS, TURNS, LAST_TURNS = KEYS[5], KEYS[6], KEYS[7], KEYS[8]
local DELAYED, LEASED, ACTIVE, DEAD = KEYS[9], KEYS[10], KEYS[11], KEYS[12]
local DEAD_AT, RECORDED, SLOTS, NAMES, MARKS = KEYS[13], KEYS[14], KEYS[15], KEYS[16], KEYS[17]
local A = cmsgpack.unpack(ARGV[1])
local call = redis.call

-- The server's clock; workers' clocks differ.
local NOW = A.now
if not NOW then
  local time = call('TIME')
  NOW = tonumber(time[1]) + tonumber(time[2]) / 1e6
end

local FIRST_TO_LAST = 9007199254740991

-- A request is a list: slot (number), rank, priority, state, deliveries, unexposed, token, worker, since, exposed.
local SLOT, RANK, PRIORITY, STATUS, DELIVERIES, UNEXPOSED, TOKEN, WORKER, SINCE, EXPOSED = 1, 2, 3, 4, 5, 6, 7, 8, 9, 10

local function number(name)
  return tonumber(call('HGET', STATE, name) or '0')
end

local function score(value)
  return string.format('%.17g', value)
end

-- An id as a member that sorts by its number among equal scores.
local function padded(id)
  return string.format('%016.0f', tonumber(id))
end

local function get(id)
  local packed = call('HGET', REQUESTS, id)
  return packed and cmsgpack.unpack(packed)
end

local function put(id, request)
  call('HSET', REQUESTS, id, cmsgpack.pack(request))
end

-- Slots are numbered: all queues stand in one sorted set, each slot's between two members.
local function slot_number(name)
  local found = call('HGET', SLOTS, name)
  if not found then
    found = struct.pack('>I4', call('HINCRBY', STATE, 'slots', 1))
    call('HSET', SLOTS, name, found)
    call('HSET', NAMES, found, name)
  end
  return found
end

local function behind(slot)
  return struct.pack('>I4', struct.unpack('>I4', slot) + 1)
end

local function member(id, request)
  local order = tonumber(id)
  if A.lifo then
    order = FIRST_TO_LAST - order
  end
  return request[SLOT] .. request[RANK] .. struct.pack('>I8', order)
end

local function id_of(found)
  local order = struct.unpack('>I8', string.sub(found, -8))
  if A.lifo then
    order = FIRST_TO_LAST - order
  end
  return string.format('%.0f', order)
end

local function is_suspect(deliveries)
  return deliveries >= math.max(1, math.min(2, A.max_deliveries - 1))
end

local function head(queue, slot)
  return call('ZRANGEBYLEX', queue, '[' .. slot, '(' .. behind(slot), 'LIMIT', 0, 1)[1]
end

local function enqueue(id, request)
  request[STATUS] = 'r'
  put(id, request)
  call('ZADD', is_suspect(request[DELIVERIES]) and SUSPECTS or READY, 0, member(id, request))
  call('ZADD', TURNS, 'NX', call('HGET', LAST_TURNS, request[SLOT]) or '0', request[SLOT])
end

local function delay(id, request, due)
  if due <= NOW then
    return enqueue(id, request)
  end
  request[STATUS] = 'd'
  put(id, request)
  call('ZADD', DELAYED, score(due), id)
end

-- No longer leased.
local function unlease(id)
  call('ZREM', LEASED, id)
  call('ZREM', ACTIVE, id)
end

local function note(id, record)
  call('HSET', RECORDS, id, cmsgpack.pack({record, call('HGET', PAYLOADS, id) or '', NOW}))
  call('ZADD', RECORDED, id, id)
end

local function kill(id, request, record)
  request[STATUS] = 'x'
  put(id, request)
  note(id, record)
  call('ZADD', DEAD, id, id)
  call('ZADD', DEAD_AT, score(NOW), padded(id))
end

local function remove(id)
  call('HDEL', REQUESTS, id)
  call('HDEL', PAYLOADS, id)
  call('HDEL', RECORDS, id)
  call('ZREM', RECORDED, id)
  call('ZREM', DEAD, id)
  call('ZREM', DEAD_AT, padded(id))
end

-- The request, if the delivery with *token* holds it still.
local function held(id, token)
  local request = get(id)
  if request and request[STATUS] == 'l' and request[TOKEN] == token then
    return request
  end
end

local function release(id, request)
  unlease(id)
  request[DELIVERIES] = request[DELIVERIES] - 1
  enqueue(id, request)
end

-- Its worker has died: ready again, or dead. True: dead.
local function take_back(id, request)
  unlease(id)
  if not request[EXPOSED] then
    request[DELIVERIES] = request[DELIVERIES] - 1
    request[UNEXPOSED] = request[UNEXPOSED] + 1
  end
  local weight = request[DELIVERIES] + math.floor(request[UNEXPOSED] / A.unexposed_factor)
  if weight < A.max_deliveries then
    enqueue(id, request)
    return false
  end
  -- Who reads the record makes one of this: see poison in deadletter.py.
  kill(id, request, {request[DELIVERIES] + request[UNEXPOSED]})
  return true
end

-- Whether a key is new; from now on it is not.
local function see(bucket, key)
  if A.seen_seconds then
    local at = tonumber(call('HGET', bucket, key) or '-inf')
    if at + A.seen_seconds > NOW then
      return false
    end
    call('HSET', bucket, key, math.floor(NOW))
    return true
  end
  return call('SADD', bucket, key) == 1
end

-- Entries are lists: payload, slot, rank, priority, due, bucket, key, identities, ordinal, met, parent.
local function is_new(entry)
  if entry[6] ~= 0 then
    return see(KEYS[entry[6]], entry[7])
  end
  if entry[8] == 0 then
    return true
  end
  local parent = entry[11]
  if parent == '0' then
    if number('seeded') == 1 then
      return true
    end
  elseif call('HEXISTS', REQUESTS, parent) == 0 then
    return true
  end
  local stored = tonumber(call('HGET', KEYS[entry[8]], entry[9]) or '0')
  if entry[10] > stored then
    call('HSET', KEYS[entry[8]], entry[9], stored + 1)
    return true
  end
  return false
end

local function store(entries)
  local verdicts = {}
  for i, entry in ipairs(entries) do
    local new = is_new(entry)
    verdicts[i] = new and 1 or 0
    if new then
      local id = string.format('%.0f', call('HINCRBY', STATE, 'id', 1))
      call('HSET', PAYLOADS, id, entry[1])
      delay(id, {slot_number(entry[2]), entry[3], entry[4], 'r', 0, 0, 0, '', 0, true}, entry[5])
      call('HSET', STATE, 'begun', 1)
    end
  end
  return verdicts
end

local function promote()
  local due = call('ZRANGEBYSCORE', DELAYED, '-inf', score(NOW), 'LIMIT', 0, 1000)
  for _, id in ipairs(due) do
    call('ZREM', DELAYED, id)
    enqueue(id, get(id))
  end
end
