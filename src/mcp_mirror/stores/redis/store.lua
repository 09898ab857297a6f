-- The operations of the Redis store that read and change several keys at once. See `records` for the keys.
--
-- KEYS[1]  the beginning of all keys
-- ARGV[1]  the name of the operation
-- ARGV[2]  its arguments as a JSON object. All have `now` (seconds since the epoch) and the settings of the store.
-- ARGV[3]  the record of a value to put, [4] the record of its tombstone, [5] its bytes unless they are in Redis
--
-- All names in arguments and keys are percent-encoded. `owner` is the namespace of a value.
--
-- A server that is out of memory or read-only refuses the first write of a script, and then nothing has changed. So a
-- put begins with a write that needs memory, and a removal with one that frees memory. Uses of a value ignore refusals.

local REMOVALS = 64 -- values that one call removes at most for a new value
local EXAMINED, STEP = 2000, 250 -- names that one call looks at for a list, and at once
local CHUNKS = 1048576 -- chunks that one value has at most; a larger number is not one that a gateway wrote
local PAGE_BYTES = 1048576 -- bytes of records after which a page of a list ends

local call, pcall = redis.call, redis.pcall
local arguments = cjson.decode(ARGV[2])
if arguments.base then arguments.name = arguments.owner .. ':' .. arguments.base end
local now, lifetime = arguments.now, arguments.lifetime
local last_expired = now - lifetime -- values that were last used until then have expired

-- An integer as text. Redis 7.2.0 to 7.2.4 pass the number 100000000 on as 1e+8, which is not an integer for them.
local function format_integer(number)
  return string.format('%.0f', number)
end

local lifetime_milliseconds = math.max(math.floor(lifetime * 1000), 1)
local blob_milliseconds = format_integer(lifetime_milliseconds)
local index_milliseconds = format_integer(lifetime_milliseconds + arguments.tombstone_seconds * 1000)

local function key(...)
  return table.concat({ KEYS[1], ... }, ':')
end

local function read_number(command, ...)
  return tonumber(call(command, ...) or 0)
end

-- The value with these names; nil if it does not exist. `chunk` is 0 if the value is an object in a bucket.
local function find(owner, base)
  local name = owner .. ':' .. base
  local mark, size, chunk, slug = unpack(call('HMGET', key('value', name), 'mark', 'size', 'chunk', 'label'))
  if not mark then return nil end
  size, chunk = tonumber(size), tonumber(chunk)
  local is_valid = size and chunk and size >= 0 and (chunk == 0 or chunk > 0 and size / chunk <= CHUNKS)
  if not is_valid then error('WRONGTYPE of a value') end
  return {
    owner = owner, base = base, name = name,
    mark = mark, size = size, chunk = chunk, slug = slug,
  }
end

-- The keys of the chunks of a value.
local function blobs(value)
  local found = {}
  local number = value.chunk > 0 and math.ceil(value.size / value.chunk) or 0
  for place = 1, number do found[place] = key('blob', value.name, value.mark, place - 1) end
  return found
end

-- The sorted sets that list a value, and its member in each. The first two are those by last use.
local function indexes(value)
  local owner, base = value.owner, value.base
  local found = {
    { key('order'), value.name },
    { key('order', owner), base },
    { key('names', owner), base },
    { key('made', owner), base },
  }
  if value.slug then found[5] = { key('made', owner, value.slug), base } end
  return found
end

-- The sorted sets that list a tombstone, and its member in each.
local function graves(value)
  return { { key('graves'), value.name }, { key('graves', value.owner), value.base } }
end

-- Fail on a server that is out of memory, read-only, or refuses writes for another reason.
local function require_writes()
  call('INCRBY', key('total'), 0)
  call('PEXPIRE', key('total'), index_milliseconds)
end

local function is_complete(value)
  for _, blob in ipairs(blobs(value)) do
    if call('EXISTS', blob) == 0 then return false end
  end
  return true
end

-- Restart the expiry of the keys of a value and of the shared keys, and make the value the most recently used.
-- `run` is `redis.call`, or `redis.pcall` to ignore refused writes.
local function use(value, run)
  for _, blob in ipairs(blobs(value)) do run('PEXPIRE', blob, blob_milliseconds) end
  run('PEXPIRE', key('value', value.name), index_milliseconds)
  for place, entry in ipairs(indexes(value)) do
    if place <= 2 then run('ZADD', entry[1], 'XX', 'GT', now, entry[2]) end
    run('PEXPIRE', entry[1], index_milliseconds)
  end
  for _, kind in ipairs({ 'values', 'bytes', 'total', 'labels' }) do run('PEXPIRE', key(kind), index_milliseconds) end
  if value.chunk == 0 then
    for _, kind in ipairs({ 'objects', 'bucket' }) do run('PEXPIRE', key(kind), index_milliseconds) end
  end
end

-- Add a value to the sums, or with -1 subtract it. The last value of a namespace takes all bytes of the namespace along:
-- a value had an unknown size if the server had removed its key.
local function count(value, sign)
  local values = tonumber(call('ZINCRBY', key('values'), sign, value.owner))
  local bytes = values > 0 and sign * value.size or -read_number('ZSCORE', key('bytes'), value.owner)
  call('INCRBY', key('total'), format_integer(bytes + 0)) -- never -0, which Redis does not accept as an integer
  call('ZINCRBY', key('bytes'), bytes, value.owner)
  for _, kind in ipairs({ 'values', 'bytes' }) do call('ZREMRANGEBYSCORE', key(kind), '-inf', 0) end
end

-- Remove a value. The record of its tombstone stays.
local function remove(value)
  for _, blob in ipairs(blobs(value)) do call('UNLINK', blob) end
  for _, entry in ipairs(indexes(value)) do call('ZREM', entry[1], entry[2]) end
  call('HDEL', key('value', value.name), 'mark', 'size', 'chunk', 'label', 'record')
  count(value, -1)
  if value.chunk == 0 then call('ZADD', key('objects'), 0, value.mark) end
end

-- The owner and base of a value, from its name. A name of another program has an empty base.
local function split(name)
  local owner, base = string.match(name, '^(.-):(.*)$')
  return owner or name, base or ''
end

-- Remove the oldest tombstones over the limits of a namespace and of the store.
local function trim_tombstones(owner)
  local old = call('ZRANGE', key('graves'), 0, -arguments.max_tombstones - 1)
  for _, base in ipairs(call('ZRANGE', key('graves', owner), 0, -arguments.namespace_tombstones - 1)) do
    table.insert(old, owner .. ':' .. base)
  end
  for _, name in ipairs(old) do
    local old_owner, base = split(name)
    call('UNLINK', key('value', name))
    call('ZREM', key('graves'), name)
    call('ZREM', key('graves', old_owner), base)
  end
end

-- Replace a value by its tombstone. Returns the reason: `expired` or `evicted`.
local function bury(name)
  local owner, base = split(name)
  local value = find(owner, base)
  local expiry = tonumber(call('ZSCORE', key('order'), name) or now) + lifetime
  local reason, at = expiry <= now and 'expired' or 'evicted', math.min(expiry, now)
  remove(value or { owner = owner, base = base, name = name, size = 0, chunk = 1 })
  if not value then return reason end -- the server has removed its key
  call('HSET', key('value', name), 'reason', reason, 'at', at)
  call('EXPIRE', key('value', name), arguments.tombstone_seconds)
  for _, grave in ipairs(graves(value)) do
    call('ZADD', grave[1], at, grave[2])
    call('EXPIRE', grave[1], arguments.tombstone_seconds)
  end
  trim_tombstones(owner)
  return reason
end

local function find_expired(most)
  return call('ZRANGE', key('order'), '-inf', last_expired, 'BYSCORE', 'LIMIT', 0, most)
end

-- Eviction, by the rules of `quotas`.

-- The values and bytes of all namespaces, and of the owner of a new value, without the value that it replaces.
local function read_usage()
  local replaced = find(arguments.owner, arguments.base)
  local values, bytes = replaced and 1 or 0, replaced and replaced.size or 0
  return {
    values = call('ZCARD', key('order')) - values,
    bytes = read_number('GET', key('total')) - bytes,
  }, {
    values = read_number('ZSCORE', key('values'), arguments.owner) - values,
    bytes = read_number('ZSCORE', key('bytes'), arguments.owner) - bytes,
  }
end

local function is_over(usage, max_values, max_bytes)
  return usage.values > 0 and (usage.values >= max_values or usage.bytes + arguments.size > max_bytes)
end

-- The bytes that are not reserved for other namespaces, or a part of them in which the new value fits.
local function find_free()
  local others = call('ZCARD', key('values'))
  if call('ZSCORE', key('values'), arguments.owner) then others = others - 1 end
  local fair = math.floor(arguments.max_bytes / (others + 1))
  if arguments.size <= fair then return fair end
  local free = arguments.max_bytes
  local kept = call('ZRANGE', key('bytes'), 0, -1, 'WITHSCORES')
  for place = 1, #kept, 2 do
    if kept[place] ~= arguments.owner then free = free - math.min(tonumber(kept[place + 1]), fair) end
  end
  return free
end

-- The namespace with the most values or bytes, including the new value; among equals the owner of the new value, then
-- the first in alphabetical order; nil if all namespaces are empty.
local function find_largest(own, exceeds_bytes)
  local kind = exceeds_bytes and 'bytes' or 'values'
  local amount = own[kind] + (exceeds_bytes and arguments.size or 1)
  local largest = call('ZRANGE', key(kind), 0, 1, 'REV', 'WITHSCORES')
  local most = largest[largest[1] == arguments.owner and 4 or 2]
  if own.values > 0 and amount >= tonumber(most or 0) then return arguments.owner end
  for _, owner in ipairs(most and call('ZRANGE', key(kind), most, most, 'BYSCORE', 'LIMIT', 0, 2) or {}) do
    if owner ~= arguments.owner then return owner end
  end
end

-- The least recently used value of a namespace, except the one that a new value replaces.
local function find_oldest(owner)
  for _, base in ipairs(call('ZRANGE', key('order', owner), 0, 1)) do
    if owner ~= arguments.owner or base ~= arguments.base then return owner .. ':' .. base end
  end
end

-- Make room for a new value. Returns the outcome, the number of evicted values, and the free bytes if it is `reserved`.
--   fits      there is room
--   again     the limit of removals in one call is reached
--   reserved  the value fits only at the cost of another namespace's fair share
--   damaged   the store is full without any value
local function make_room()
  local evicted, is_checked = 0, false
  for _, name in ipairs(find_expired(arguments.expired_per_put)) do bury(name) end
  for _ = 1, REMOVALS do
    local total, own = read_usage()
    local is_full = is_over(total, arguments.max_values, arguments.max_bytes)
    local is_crowded = is_over(own, arguments.share_values, arguments.share_bytes)
    if not is_full and not is_crowded then return 'fits', evicted end
    local name = is_full and find_expired(1)[1]
    if not name then
      local free = is_full and not is_checked and find_free() or arguments.max_bytes
      if arguments.size > free then return 'reserved', evicted, free end
      is_checked = true
      local exceeds_bytes = total.bytes + arguments.size > arguments.max_bytes
      local owner = is_crowded and arguments.owner or find_largest(own, exceeds_bytes)
      name = owner and find_oldest(owner)
    end
    if not name then return 'damaged', evicted end
    if bury(name) == 'evicted' then evicted = evicted + 1 end
  end
  return 'again', evicted
end

-- Lists.

-- The time of the last use of a value of the owner; nil if it has expired or does not exist.
local function read_use(base)
  local used = call('ZSCORE', key('order', arguments.owner), base)
  return used and tonumber(used) > last_expired and used or nil
end

local lost = 0 -- values without some of their keys, which the server has removed by itself

-- Whether a listed value of the owner can be used: it has not expired, and the server has removed none of its keys.
local function is_usable(base)
  local used = call('ZSCORE', key('order', arguments.owner), base)
  if used and tonumber(used) <= last_expired then return false end
  local value = used and find(arguments.owner, base)
  if value and is_complete(value) then return true end
  lost = lost + 1
  return false
end

-- The rank that follows a value in an index by creation time, newest first. The value may have been removed.
local function find_following(made, base, created)
  local names = key('names', arguments.owner) -- compares bases by their bytes; Lua may compare them by a locale
  local place = call('ZLEXCOUNT', names, '-', '(' .. base)
  local low, high = call('ZCOUNT', made, '(' .. created, '+inf'), call('ZCOUNT', made, created, '+inf')
  while low < high do
    local middle = math.floor((low + high) / 2)
    local other = call('ZREVRANGE', made, middle, middle)[1]
    if (call('ZRANK', names, other) or place) >= place then low = middle + 1 else high = middle end
  end
  return low
end

-- At most `most` names of usable values of an index, by `ZRANGE` or `ZREVRANGE` from a rank on, and the next rank; nil at the
-- end. It looks at a bounded number of names, so it may find fewer although more follow.
local function take(range, index, rank, most)
  local found, step, bound = {}, most, rank + EXAMINED
  while #found < most and rank < bound do
    local bases = call(range, index, rank, rank + step - 1)
    for place, base in ipairs(bases) do
      if is_usable(base) then table.insert(found, base) end
      if #found == most then return found, rank + place end
    end
    if #bases < step then return found, nil end
    rank, step = rank + step, math.min(2 * step, STEP)
  end
  return found, rank
end

-- Puts.

-- Whether the bytes of a large value are in Redis or in the bucket, and no gateway has given them up.
local function is_uploaded(value)
  if value.chunk == 0 then return read_number('ZSCORE', key('objects'), value.mark) > 0 end
  return is_complete(value)
end

-- Add a value to the index, and its bytes unless `blob` is nil. Its tombstone goes.
local function enter(value, record, origin, blob)
  local hash = key('value', value.name)
  call('UNLINK', hash)
  for _, grave in ipairs(graves(value)) do call('ZREM', grave[1], grave[2]) end
  call('HSET', hash, 'mark', value.mark, 'size', value.size, 'chunk', value.chunk, 'record', record, 'origin', origin)
  if value.slug then
    call('HSET', hash, 'label', value.slug)
    call('SADD', key('labels'), value.slug)
  end
  if blob and value.size > 0 then call('SET', blobs(value)[1], blob) end
  if value.chunk == 0 then call('ZADD', key('objects'), -1, value.mark) end
  local scores = { now, now, 0, value.created, value.created }
  for place, entry in ipairs(indexes(value)) do call('ZADD', entry[1], scores[place], entry[2]) end
  count(value, 1)
  use(value, call)
end

local operations = {}

-- Fail if the server refuses writes, else return 1.
function operations.check()
  require_writes()
  return 1
end

-- How the server limits its memory: what it does if it is full, and its bytes, 0 for no limit. Nothing if the user may not
-- read that.
function operations.memory_limit()
  local found = pcall('INFO', 'memory')
  if type(found) ~= 'string' then return end
  return { string.match(found, 'maxmemory_policy:(%S+)'), tonumber(string.match(found, 'maxmemory:(%d+)')) }
end

-- Remove the chunks of an unfinished put, unless its value is visible because only a reply was lost.
function operations.discard()
  local present = find(arguments.owner, arguments.base)
  if present and present.mark == arguments.mark then return end
  for _, blob in ipairs(blobs(arguments)) do call('UNLINK', blob) end
end

-- Make a value visible whose large bytes were written before. Returns the outcome, the number of evicted values, and
-- the free bytes if the outcome is `reserved`. The outcome is `stored`, `late` if the bytes are gone, or one of
-- `make_room`. A repeated call, after a lost reply, changes nothing.
function operations.put()
  local value, record, origin, blob = arguments, ARGV[3], ARGV[4], ARGV[5]
  local present = find(value.owner, value.base)
  if present and present.mark == value.mark then return { 'stored', 0 } end
  if not blob and not is_uploaded(value) then return { 'late', 0 } end
  require_writes()
  local outcome, evicted, free = make_room()
  if outcome ~= 'fits' then return { outcome, evicted, free } end
  local replaced = find(value.owner, value.base)
  if replaced then remove(replaced) end
  enter(value, record, origin, blob)
  return { 'stored', evicted }
end

-- Use a value. Returns its record, nothing as the reason, the time of its last use before, its mark, size and bytes per
-- chunk, and its bytes if they are at most `most`; or the record of its tombstone, the reason and the time; nil for an
-- unknown name. The reason is `unlisted` or `incomplete` if the server has removed keys of the value by itself, and `lost`
-- without a record if it has removed the record.
function operations.describe()
  local hash = key('value', arguments.name)
  local record, origin, reason, at = unpack(call('HMGET', hash, 'record', 'origin', 'reason', 'at'))
  if reason then return { origin, reason, at } end
  local value = find(arguments.owner, arguments.base)
  local used, own_use = call('ZSCORE', key('order'), arguments.name), call('ZSCORE', key('order', arguments.owner), arguments.base)
  if not value then return read_use(arguments.base) and { '', 'lost', '0' } or nil end
  if used and tonumber(used) <= last_expired then
    return { origin, 'expired', string.format('%.17g', tonumber(used) + lifetime) }
  end
  local loss = not (used and own_use) and 'unlisted' or not is_complete(value) and 'incomplete'
  if loss then return { origin, loss, string.format('%.17g', now) } end
  use(value, pcall)
  local is_sent = value.size <= math.min(arguments.most, value.chunk)
  local content = is_sent and (value.size == 0 and '' or call('GET', blobs(value)[1]))
  return { record, '', used, value.mark, value.size, value.chunk, content }
end

-- Remove a value without a tombstone. Returns the number of removed values.
function operations.delete()
  local value = find(arguments.owner, arguments.base)
  if not value or not read_use(value.base) then return 0 end
  remove(value)
  call('UNLINK', key('value', value.name))
  return 1
end

-- Replace at most `most` expired values by tombstones. Returns their number.
function operations.expire()
  local names = find_expired(arguments.most)
  for _, name in ipairs(names) do bury(name) end
  return #names
end

-- The slugs of the values of a namespace. Without `owner`, those of all values and tombstones.
function operations.slugs()
  local slugs = call('SMEMBERS', key('labels'))
  if not arguments.owner then return slugs end
  local found = {}
  for _, slug in ipairs(slugs) do
    if call('EXISTS', key('made', arguments.owner, slug)) == 1 then table.insert(found, slug) end
  end
  return found
end

-- A page of the values of a namespace or of one tool, newest first. The page follows a value with the base `after`, which
-- must exist unless its creation time is given as `created`. Returns the number of lost values; the place of the next
-- page, which is the base and creation time of a value, or an empty list at the end; and the base, last use and record of
-- each value. Returns nil if `after` does not exist.
function operations.list()
  local made, after, created, rank = key('made', arguments.owner, arguments.slug), arguments.after, arguments.created, 0
  if after and not created then
    created = read_use(after) and call('ZSCORE', made, after)
    if not created then return nil end
  end
  if after then rank = find_following(made, after, created) end
  local bases, following = take('ZREVRANGE', made, rank, arguments.most)
  local page = { lost, following and call('ZREVRANGE', made, following - 1, following - 1, 'WITHSCORES') or {} }
  local bytes = 0
  for place, base in ipairs(bases) do
    local record = call('HGET', key('value', arguments.owner .. ':' .. base), 'record')
    table.insert(page, { base, read_use(base), record })
    bytes = bytes + #record
    if bytes > PAGE_BYTES and place < #bases then
      page[2] = { base, call('ZSCORE', made, base) }
      break
    end
  end
  return page
end

-- The number of lost values, and the bases on both sides of a text in alphabetical order, at most `most` on each side.
function operations.near()
  local names = key('names', arguments.owner)
  local place = call('ZLEXCOUNT', names, '-', '(' .. arguments.text)
  local bases = take('ZRANGE', names, place, arguments.most)
  for _, base in ipairs((take('ZREVRANGE', names, call('ZCARD', names) - place, arguments.most))) do
    table.insert(bases, 1, base)
  end
  return { lost, bases }
end

-- The sums of a namespace: its unexpired values, their bytes, its tokens sent and kept out; and if one call cannot add up
-- all sizes, the remaining part: a further call with this part returns what to add to the bytes. The bytes are those of
-- the unexpired values, or all bytes without the expired ones, whichever are fewer to add up.
function operations.stats()
  local order = key('order', arguments.owner)
  local values, expired = call('ZCARD', order), call('ZCOUNT', order, '-inf', last_expired)
  local bytes, part = 0, arguments.part
  if not part and values - expired < expired then
    part = { expired, values, 1 }
  elseif not part then
    bytes, part = read_number('ZSCORE', key('bytes'), arguments.owner), { 0, expired, -1 }
  end
  local first, last, sign = unpack(part)
  local stop = math.min(last, first + EXAMINED)
  for _, base in ipairs(first < stop and call('ZRANGE', order, first, stop - 1) or {}) do
    bytes = bytes + sign * read_number('HGET', key('value', arguments.owner .. ':' .. base), 'size')
  end
  local sent, kept = unpack(call('HMGET', key('traffic'), 'sent:' .. arguments.owner, 'kept:' .. arguments.owner))
  return { values - expired, bytes, sent or 0, kept or 0, stop < last and { stop, last, sign } or nil }
end

return operations[ARGV[1]]()
