-- Begin a crawl, or join the one that goes on.
local pending = call('HLEN', REQUESTS) - call('ZCARD', DEAD)
if number('finished') == 1 and pending == 0 then
  local generation = number('seen')
  call('HINCRBY', STATE, 'crawl', 1)
  call('HSET', STATE, 'begun', 0, 'seeded', 0)
  if not A.keep_seen then
    call('HSET', STATE, 'seen', generation + 1)
  end
  call('DEL', MARKS, KEYS[18])
end
call('HSETNX', STATE, 'buckets', A.buckets)
call('HSET', STATE, 'finished', 0)
return {
  number('begun'), number('seeded'), number('crawl'), number('seen'), number('buckets'),
  call('HINCRBY', STATE, 'token', 1),
}
