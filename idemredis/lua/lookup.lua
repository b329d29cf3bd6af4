-- Read what is kept: state, value, ref, error, print, and in ms: how long ago
-- it was kept, and how long it will be (-1: for ever).
local state, ends, value, ref, text, print, done = read('state', 'lease', 'value', 'ref', 'error', 'print', 'done')
if not state or (state == 'claim' and alive(ends)) then return {'free'} end
if state == 'claim' then
  return {'lost', false, false, false, print, whole(now() - ends), '-1'}
end
return {state, value, ref, text, print, whole(now() - done), whole(redis.call('PTTL', key))}
