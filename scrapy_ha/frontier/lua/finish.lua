-- A worker that is late must not end the crawl that came after its own.
if number('crawl') == A.crawl then
  call('HSET', STATE, 'finished', 1)
end
