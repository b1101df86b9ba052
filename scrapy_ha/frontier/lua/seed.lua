-- Whether this worker is to produce the start requests: 1; 0: another one does; 2: all are stored.
if number('seeded') == 1 then
  return 2
end
local seeder = call('HGET', STATE, 'seeder')
if seeder and seeder ~= A.worker and number('seeding_until') > NOW then
  return 0
end
call('HSET', STATE, 'seeder', A.worker, 'seeding_until', score(NOW + A.ttl))
return 1
