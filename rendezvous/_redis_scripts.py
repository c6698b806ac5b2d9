"""Lua scripts that a Redis server runs: the operations of the store in `redis.py`, which describes the keys.

Invariant: each script is one atomic step on the server. If a script creates a key, the same step wakes all clients that
wait for this key.
"""

from __future__ import annotations

# ARGV: key prefix, time to live of keys, time to live of waiters' keys, then the arguments named beside each script
_HEAD = """
local p, ttl, wttl = ARGV[1], ARGV[2], ARGV[3]
local function wake(key)
  local w = p .. 'w:' .. key
  for _, waiter in ipairs(redis.call('SMEMBERS', w)) do
    redis.call('RPUSH', waiter, '1')
    redis.call('PEXPIRE', waiter, wttl)
  end
  redis.call('DEL', w)
end
local function put(key, value)
  redis.call('SET', p .. 'v:' .. key, value, 'PX', ttl)
  wake(key)
end
"""
SET = _HEAD + "put(ARGV[4], ARGV[5])"
GET = (  # key ...: values
    _HEAD
    + """
local values = {}
for i = 4, #ARGV do
  local v = p .. 'v:' .. ARGV[i]
  values[#values + 1] = redis.call('GET', v)
  redis.call('PEXPIRE', v, ttl)
end
return values
"""
)
ADD = (  # key, amount: sum, or the value that is no number
    _HEAD
    + """
local v = p .. 'v:' .. ARGV[4]
local old = redis.call('GET', v)
local sum = redis.pcall('INCRBY', v, ARGV[5])
if type(sum) == 'table' then return {0, old} end
redis.call('PEXPIRE', v, ttl)
wake(ARGV[4])
return {1, redis.call('GET', v)}
"""
)
COMPARE_SET = (  # key, has expected, expected, has value, value
    _HEAD
    + """
local v = p .. 'v:' .. ARGV[4]
local old = redis.call('GET', v)
if old ~= (ARGV[5] == '1' and ARGV[6]) then return old end
if ARGV[7] == '1' then
  put(ARGV[4], ARGV[8])
  return ARGV[8]
end
redis.call('DEL', v)
return false
"""
)
DELETE = (
    _HEAD
    + """
local found = 0
for i = 4, #ARGV do found = found + redis.call('DEL', p .. 'v:' .. ARGV[i]) end
return found
"""
)
WAIT = (  # waiter, enlist, key ...: {1, values} or {0, missing keys}
    _HEAD
    + """
local values, absent = {}, {}
for i = 6, #ARGV do
  local v = p .. 'v:' .. ARGV[i]
  local value = redis.call('GET', v)
  if value then
    redis.call('PEXPIRE', v, ttl)
    values[#values + 1] = value
  else
    absent[#absent + 1] = ARGV[i]
  end
end
redis.call('DEL', ARGV[4])
if #absent == 0 then return {1, values} end
if ARGV[5] == '1' then
  local w = p .. 'w:' .. absent[1]
  redis.call('SADD', w, ARGV[4])
  redis.call('PEXPIRE', w, wttl)
else
  -- Another key may have been the first absent one when the waiter enlisted: keys can be deleted meanwhile.
  for _, key in ipairs(absent) do redis.call('SREM', p .. 'w:' .. key, ARGV[4]) end
end
return {0, absent}
"""
)
