"""What runs inside the server: each script is atomic, and takes the time from the server's clock.

`turnbridge:bridges` has the bridges that live and when their leases end, `turnbridge:turns:KEY` the turns of a key by
bridge, `turnbridge:requests:KEY` the token bucket of a key.
"""

BRIDGES = "turnbridge:bridges"
TURNS = "turnbridge:turns:"
REQUESTS = "turnbridge:requests:"

LEASE = 6.0
"""Seconds for which a bridge, and its turns, count after its last report."""

_NOW = "local time = redis.call('TIME'); local now = time[1] * 1000000 + time[2]\n"

# ARGV: requests per minute; what the caller's own count says is left, which is less after a fault: a server that was
# restarted has forgotten what was taken, and a frozen one has not heard of it.
TAKE_REQUEST = (
    _NOW
    + """
local limit = tonumber(ARGV[1])
local saved = redis.call('HMGET', KEYS[1], 'left', 'at')
local left = limit
if saved[1] then left = math.min(limit, saved[1] + math.max(0, now - saved[2]) * limit / 60000000) end
left = math.min(left, tonumber(ARGV[2]))
local taken = 0
if left >= 1 then left = left - 1; taken = 1 end
redis.call('HSET', KEYS[1], 'left', string.format('%.17g', left), 'at', string.format('%.0f', now))
redis.call('PEXPIRE', KEYS[1], 60000)
return {taken, string.format('%.17g', left)}
"""
)

# ARGV: the bridge, its turns with the new ones, the key's limit, the lease in milliseconds. Turns are absolute numbers:
# a call whose answer was lost is repaired by the next report. Those of a bridge whose lease has ended do not count.
TAKE_TURNS = (
    _NOW
    + """
local total = tonumber(ARGV[2])
local turns = redis.call('HGETALL', KEYS[2])
for index = 1, #turns, 2 do
  if turns[index] ~= ARGV[1] then
    local ends = redis.call('ZSCORE', KEYS[1], turns[index])
    if ends and tonumber(ends) > now then total = total + turns[index + 1]
    else redis.call('HDEL', KEYS[2], turns[index]) end
  end
end
if total > tonumber(ARGV[3]) then return 0 end
redis.call('ZADD', KEYS[1], string.format('%.0f', now + ARGV[4] * 1000), ARGV[1])
redis.call('HSET', KEYS[2], ARGV[1], ARGV[2])
redis.call('PEXPIRE', KEYS[2], ARGV[4] * 2)
return 1
"""
)

# ARGV: the bridge, the lease in milliseconds (0: it leaves), its turns for each further key. Returns how many live.
REPORT = (
    _NOW
    + """
redis.call('ZADD', KEYS[1], string.format('%.0f', now + ARGV[2] * 1000), ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', string.format('%.0f', now))
for index = 2, #KEYS do
  if tonumber(ARGV[index + 1]) > 0 then
    redis.call('HSET', KEYS[index], ARGV[1], ARGV[index + 1])
    redis.call('PEXPIRE', KEYS[index], ARGV[2] * 2)
  else redis.call('HDEL', KEYS[index], ARGV[1]) end
end
return redis.call('ZCARD', KEYS[1])
"""
)
