-- Read what is kept: state, value, ref, error, print, and in ms: how long ago
-- it was kept, and how long it will be (-1: for ever).
local state, till, value, ref, text, print, done, ends =
  read('state', 'lease', 'value', 'ref', 'error', 'print', 'done', 'ends')
if not state or (state == 'claim' and alive(till)) or over(state, ends) then return {'free'} end
if state == 'claim' then
  return {'lost', false, false, false, print, whole(now() - till), '-1'}
end
local left = ends and ends - now() or redis.call('PTTL', key)
return {state, value, ref, text, print, whole(now() - done), whole(left)}
