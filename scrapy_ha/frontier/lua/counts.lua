return {
  call('ZCARD', READY) + call('ZCARD', SUSPECTS), call('ZCARD', DELAYED), call('ZCARD', LEASED), call('ZCARD', DEAD),
  call('ZRANGE', DELAYED, 0, 0, 'WITHSCORES')[2] or '',
}
