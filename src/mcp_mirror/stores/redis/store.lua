-- The operations of the Redis store that read and change several keys at once. See `records` for the keys.
--
-- KEYS[1]  the beginning of all keys
-- ARGV[1]  the name of the operation
-- ARGV[2]  its arguments as a JSON object. All have `now` (seconds since the epoch) and the settings of the store.
-- ARGV[3]  the record of a value to put, [4] the record of its tombstone, [5] its bytes unless they are in Redis
--
-- All names in arguments and keys are percent-encoded. `owner` is the namespace of a value, and its name is
-- `<owner>:<base>`.
--
-- A server that is out of memory or read-only refuses the first write of a script, and then nothing has changed. So a
-- put begins with a write that needs memory, and a removal with one that frees memory. Uses of a value ignore refusals.

local REMOVALS = 64 -- values that one call removes at most for a new value
local EXAMINED, STEP = 2000, 32 -- names that one call looks at for a list, and that it reads at once
local CHUNKS = 1048576 -- chunks that one value has at most; a larger number is not one that a gateway wrote
local PAGE_BYTES = 1048576 -- bytes of records after which a page of a list ends

local call, pcall = redis.call, redis.pcall
local arguments = cjson.decode(ARGV[2])
if arguments.base then arguments.name = arguments.owner .. ':' .. arguments.base end
local now, lifetime = arguments.now, arguments.lifetime
local last_expired = now - lifetime -- values that were last used until then have expired

local function key(...)
  return table.concat({ KEYS[1], ... }, ':')
end

local function read_number(command, ...)
  return tonumber(call(command, ...) or 0)
end

-- What the store has under a name. Only a value has a `mark`, and only a tombstone a `reason`. `chunk` is 0 if the
-- value is an object in a bucket.
local function find(name)
  local owner, base = string.match(name, '^([^:]*):?(.*)$') -- a name of another program may have no base
  local mark, size, chunk, label, record, origin, reason, at =
    unpack(call('HMGET', key('value', name), 'mark', 'size', 'chunk', 'label', 'record', 'origin', 'reason', 'at'))
  if not mark then size, chunk = 0, 1 end
  size, chunk = tonumber(size), tonumber(chunk)
  local is_valid = size and chunk and size >= 0 and (chunk == 0 or chunk > 0 and size / chunk <= CHUNKS)
  if not is_valid then error('WRONGTYPE of a value') end
  return {
    name = name, owner = owner, base = base,
    mark = mark, size = size, chunk = chunk, label = label, record = record, origin = origin, reason = reason, at = at,
  }
end

-- The keys of the chunks of a value.
local function blobs(value)
  local found = {}
  local number = value.chunk > 0 and math.ceil(value.size / value.chunk) or 0
  for place = 1, number do found[place] = key('blob', value.name, value.mark, place - 1) end
  return found
end

local function is_complete(value)
  for _, blob in ipairs(blobs(value)) do
    if call('EXISTS', blob) == 0 then return false end
  end
  return true
end

-- The sorted sets that list a value, with its member in each, and its score if it is new. The first two are those by
-- last use.
local function indexes(value)
  local owner, base, created = value.owner, value.base, value.created
  local found = {
    { key('order'), value.name, now },
    { key('order', owner), base, now },
    { key('names', owner), base, 0 },
    { key('made', owner), base, created },
  }
  if value.label then found[5] = { key('made', owner, value.label), base, created } end
  return found
end

-- Restart the expiry of the keys of a value and of the shared keys, and make the value the most recently used.
-- `run` is `redis.call`, or `redis.pcall` to ignore refused writes.
local function use(value, run)
  for _, blob in ipairs(blobs(value)) do run('PEXPIRE', blob, arguments.blob_milliseconds) end
  run('EXPIRE', key('value', value.name), arguments.expiry)
  for place, entry in ipairs(indexes(value)) do
    if place <= 2 then run('ZADD', entry[1], 'XX', 'GT', entry[3], entry[2]) end
    run('EXPIRE', entry[1], arguments.expiry)
  end
  for _, kind in ipairs({ 'values', 'bytes', 'total', 'labels', 'objects', 'bucket' }) do
    run('EXPIRE', key(kind), arguments.expiry)
  end
end

-- Add a value to the sums, or with -1 subtract it. The last value of a namespace takes all bytes of the namespace
-- along: a value had an unknown size if the server had removed its key.
local function count(value, sign)
  local values = tonumber(call('ZINCRBY', key('values'), sign, value.owner))
  local bytes = values > 0 and sign * value.size or -read_number('ZSCORE', key('bytes'), value.owner)
  -- Never -0, which is not an integer for Redis; nor is 1e+08, as Redis 7.2.0 to 7.2.4 write the number.
  call('INCRBY', key('total'), string.format('%.0f', bytes + 0))
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

-- Remove what is left of a removed value: its tombstone.
local function forget(value)
  call('UNLINK', key('value', value.name))
  call('ZREM', key('graves'), value.name)
  call('ZREM', key('graves', value.owner), value.base)
end

-- Replace a value by its tombstone, in place of the oldest ones over the limits of the store and of the namespace.
-- Returns the reason: `expired` or `evicted`. The key of the value keeps its expiry.
local function bury(name)
  local value = find(name)
  local graves, own_graves = key('graves'), key('graves', value.owner)
  local expiry = tonumber(call('ZSCORE', key('order'), name) or now) + lifetime
  local reason, at = expiry <= now and 'expired' or 'evicted', math.min(expiry, now)
  remove(value)
  if not value.mark then return reason end -- the server has removed its key
  call('HSET', key('value', name), 'reason', reason, 'at', at)
  call('ZADD', graves, at, name)
  call('ZADD', own_graves, at, value.base)
  for _, grave in ipairs({ graves, own_graves }) do call('EXPIRE', grave, arguments.expiry) end
  for _, old in ipairs(call('ZRANGE', graves, 0, -arguments.max_tombstones - 1)) do forget(find(old)) end
  for _, base in ipairs(call('ZRANGE', own_graves, 0, -arguments.namespace_tombstones - 1)) do
    forget(find(value.owner .. ':' .. base))
  end
  return reason
end

local function find_expired(most)
  return call('ZRANGE', key('order'), '-inf', last_expired, 'BYSCORE', 'LIMIT', 0, most)
end

-- Eviction, by the rules of `quotas`.

local function is_over(values, bytes, max_values, max_bytes)
  return values > 0 and (values >= max_values or bytes + arguments.size > max_bytes)
end

-- The bytes that are not reserved for other namespaces, or a part of them in which the new value fits.
local function find_free()
  local owners = call('ZCARD', key('values')) + (call('ZSCORE', key('values'), arguments.owner) and 0 or 1)
  local free, fair = arguments.max_bytes, math.floor(arguments.max_bytes / owners)
  if arguments.size <= fair then return fair end
  local kept = call('ZRANGE', key('bytes'), 0, -1, 'WITHSCORES')
  for place = 1, #kept, 2 do
    if kept[place] ~= arguments.owner then free = free - math.min(tonumber(kept[place + 1]), fair) end
  end
  return free
end

-- The namespace with the most `values` or `bytes`, including the `added` ones of the new value; among equals the owner
-- of the new value, then the last in alphabetical order; nil if all namespaces are empty.
local function find_largest(kind, added)
  local owner, largest = arguments.owner, call('ZRANGE', key(kind), 0, 1, 'REV', 'WITHSCORES')
  local other = largest[1] == owner and 3 or 1
  local own = call('ZSCORE', key('values'), owner) and read_number('ZSCORE', key(kind), owner) + added
  return own and own >= tonumber(largest[other + 1] or 0) and owner or largest[other]
end

-- Make room for a new value. Returns the outcome, the number of evicted values, and the free bytes if it is `reserved`.
--   fits      there is room
--   again     the limit of removals in one call is reached
--   reserved  the value fits only at the cost of another namespace's fair share
--   damaged   the store is full without any value
local function make_room()
  local owner, evicted, free = arguments.owner, 0, nil
  for _, name in ipairs(find_expired(arguments.expired_per_put)) do bury(name) end
  for _ = 1, REMOVALS do
    local bytes, own_bytes = read_number('GET', key('total')), read_number('ZSCORE', key('bytes'), owner)
    local own_values = read_number('ZSCORE', key('values'), owner)
    local is_full = is_over(call('ZCARD', key('order')), bytes, arguments.max_values, arguments.max_bytes)
    local is_crowded = is_over(own_values, own_bytes, arguments.share_values, arguments.share_bytes)
    if not is_full and not is_crowded then return 'fits', evicted end
    local name = is_full and find_expired(1)[1]
    if not name then
      free = free or find_free()
      if arguments.size > free then return 'reserved', evicted, free end
      local exceeds_bytes = bytes + arguments.size > arguments.max_bytes
      local crowded = is_crowded and owner
        or exceeds_bytes and find_largest('bytes', arguments.size)
        or find_largest('values', 1)
      local base = crowded and call('ZRANGE', key('order', crowded), 0, 0)[1]
      if not base then return 'damaged', evicted end
      name = crowded .. ':' .. base
    end
    if bury(name) == 'evicted' then evicted = evicted + 1 end
  end
  return 'again', evicted
end

-- Lists.

local lost = 0 -- values that were found without some of their keys, which the server has removed by itself

-- Why a value cannot be used, nil if it can; the time of its last use; and the value, unless it has `expired`. The
-- other reason is `lost`.
local function examine(owner, base)
  local used = call('ZSCORE', key('order', owner), base)
  if used and tonumber(used) <= last_expired then return 'expired', used end
  local value = find(owner .. ':' .. base)
  if used and value.mark and is_complete(value) then return nil, used, value end
  lost = lost + 1
  return 'lost', used, value
end

-- At most `most` usable values among the next ones in alphabetical order, by `ZRANGE` or `ZREVRANGE` from a rank on.
local function find_next(range, rank, most)
  local found = {}
  for start = rank, rank + EXAMINED, most + 1 do
    local bases = call(range, key('names', arguments.owner), start, start + most)
    for _, base in ipairs(bases) do
      if #found == most then return found end
      if not examine(arguments.owner, base) then table.insert(found, base) end
    end
    if #bases <= most then break end
  end
  return found
end

local operations = {}

-- Fail if the server is out of memory, read-only, or refuses writes for another reason, else return 1.
function operations.check()
  call('INCRBY', key('total'), 0)
  return call('EXPIRE', key('total'), arguments.expiry)
end

-- How the server limits its memory: what it does if it is full, and its bytes, 0 for no limit. Nothing if the user may
-- not read that.
function operations.memory_limit()
  local found = pcall('INFO', 'memory')
  if type(found) ~= 'string' then return end
  return { string.match(found, 'maxmemory_policy:(%S+)'), tonumber(string.match(found, 'maxmemory:(%d+)')) }
end

-- Remove the chunks of an unfinished put, unless its value is visible because only a reply was lost.
function operations.discard()
  if find(arguments.name).mark == arguments.mark then return end
  for _, blob in ipairs(blobs(arguments)) do call('UNLINK', blob) end
end

-- Whether the bytes of a large value are in Redis or in the bucket, and no gateway has given them up.
local function is_uploaded(value)
  if value.chunk == 0 then return read_number('ZSCORE', key('objects'), value.mark) > 0 end
  return is_complete(value)
end

-- Make a value visible whose large bytes were written before. Returns the outcome, the number of evicted values, and
-- the free bytes if the outcome is `reserved`. The outcome is `stored`, `late` if the bytes are gone, or one of
-- `make_room`. A repeated call, after a lost reply, changes nothing.
function operations.put()
  local value, record, origin, blob = arguments, ARGV[3], ARGV[4], ARGV[5]
  if find(value.name).mark == value.mark then return { 'stored', 0 } end
  if not blob and not is_uploaded(value) then return { 'late', 0 } end
  operations.check()
  local outcome, evicted, free = make_room()
  if outcome ~= 'fits' then return { outcome, evicted, free } end
  local replaced, hash = find(value.name), key('value', value.name)
  if replaced.mark then remove(replaced) end
  forget(value)
  call('HSET', hash, 'mark', value.mark, 'size', value.size, 'chunk', value.chunk, 'record', record, 'origin', origin)
  if value.label then
    call('HSET', hash, 'label', value.label)
    call('SADD', key('labels'), value.label)
  end
  if blob and value.size > 0 then call('SET', blobs(value)[1], blob) end
  if value.chunk == 0 then call('ZADD', key('objects'), -1, value.mark) end
  for _, entry in ipairs(indexes(value)) do call('ZADD', entry[1], entry[3], entry[2]) end
  count(value, 1)
  use(value, call)
  return { 'stored', evicted }
end

-- Use a value. Returns its record, nothing as the reason, the time of its last use before, its mark, size and bytes per
-- chunk, and its bytes if they are at most `most`; or the record of its tombstone, the reason and the time; nil for an
-- unknown name. The reason is `lost` if the server has removed keys of the value by itself, perhaps the record, too.
function operations.describe()
  local fault, used, value = examine(arguments.owner, arguments.base)
  if not fault and not call('ZSCORE', key('order'), arguments.name) then fault = 'lost' end
  value = value or find(arguments.name)
  if value.reason then return { value.origin, value.reason, value.at } end
  if not value.mark and not used then return nil end
  if fault then
    return { value.origin or '', fault, string.format('%.17g', fault == 'expired' and used + lifetime or now) }
  end
  use(value, pcall)
  local is_sent = value.size <= math.min(arguments.most, value.chunk)
  local content = is_sent and (value.size == 0 and '' or call('GET', blobs(value)[1]))
  return { value.record, '', used, value.mark, value.size, value.chunk, content }
end

-- Remove a value without a tombstone. Returns the number of removed values.
function operations.delete()
  local _, _, value = examine(arguments.owner, arguments.base)
  if not (value and value.mark) then return 0 end
  remove(value)
  return call('UNLINK', key('value', value.name))
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

-- A page of the values of a namespace or of one tool, newest first, which follows the value `after`, or the values of
-- the creation time `follows`. The page ends where the creation time changes: it may have more than `most` values, and
-- fewer after many names or bytes. Returns the number of lost values; the creation time at the end, empty for the last
-- page; and the base, last use and record of each value. Returns nil if `after` does not exist.
function operations.list()
  local made, after, rank = key('made', arguments.owner, arguments.slug), arguments.after, 0
  if after then
    rank = not examine(arguments.owner, after) and call('ZREVRANK', made, after)
    if not rank then return nil end
    rank = rank + 1
  elseif arguments.follows then
    rank = call('ZCOUNT', made, arguments.follows, '+inf')
  end
  local rows, bytes, first, last = {}, 0, rank, nil
  while true do
    local bases = call('ZREVRANGE', made, rank, rank + STEP - 1)
    if #bases == 0 then return { lost, '', rows } end
    for _, base in ipairs(bases) do
      if #rows >= arguments.most or bytes > PAGE_BYTES or rank - first >= EXAMINED then
        local created = call('ZSCORE', made, last)
        if call('ZSCORE', made, base) ~= created then return { lost, created, rows } end
      end
      local fault, used, value = examine(arguments.owner, base)
      if not fault then
        table.insert(rows, { base, used, value.record })
        bytes = bytes + #value.record
      end
      last, rank = base, rank + 1
    end
  end
end

-- The number of lost values, and the bases on both sides of a text in alphabetical order, at most `most` on each side.
function operations.near()
  local names = key('names', arguments.owner)
  local place = call('ZLEXCOUNT', names, '-', '(' .. arguments.text)
  local bases = find_next('ZRANGE', place, arguments.most)
  for _, base in ipairs(find_next('ZREVRANGE', call('ZCARD', names) - place, arguments.most)) do
    table.insert(bases, 1, base)
  end
  return { lost, bases }
end

-- The sums of a namespace: its unexpired values, their bytes, its tokens sent and kept out; and if one call cannot add
-- up all sizes, the remaining part: a further call with this part returns what to add to the bytes. The bytes are those
-- of the unexpired values, or all bytes without the expired ones, whichever are fewer to add up.
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
