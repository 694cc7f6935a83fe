-- Decides in Redis: every level of all global limits of a request, together.
--
-- KEYS   one key per level; all of them lie in one hash slot.
-- ARGV   "1" (the version of this protocol), the operation, then for each key in turn
--          "w" cost limit window_us        a sliding window, or
--          "g" cost rate per_us burst      a generic cell rate,
--        and what the operation adds to them. The operations:
-- decide   Charges the cost on every key, or on none. Replies with integers: admitted, then for
--          each key admitted, remaining, retry_after_us, reset_after_us.
-- lease    adds  firm ahead . Where the cost fits on every key, charges each as many units as it
--          has room for, up to `firm`, and of what is left then a quarter, up to `ahead`; else
--          none. Replies with integers: the clock, then for each key granted, and, as things are
--          now, whether the cost would fit, remaining, retry_after_us, reset_after_us.
-- return   adds  at_us , the clock of a lease. Takes back `cost` units of those charged then, or
--          what is left of them. Replies with 1.
--
-- Whatever is written has an expiry. All numbers are whole and at most 2^53, up to which Lua's
-- doubles are exact. docs/store.md is the reference.
--
-- Redis runs this file from its first line for every request, so it defines few functions, names a
-- table's fields where it makes the table, and reads of a window only what it needs.

local MAX = 9007199254740992
local MAX_WINDOW_US = MAX / 2
local MAX_KEYS = 256

-- A bucket spans a sixteenth of the window. Seventeen can count at once, and one is being opened.
local BUCKETS_PER_WINDOW = 16
local MAX_BUCKETS = 18

-- Keys outlive their use by this much, so that no rounding of the expiry frees anything early.
local SLACK_MS = 500

-- A value may be dated ahead of the clock by its own period and this much; time then stands still
-- for it. One from further ahead was written under a broken clock and is not believed.
local MAX_AHEAD_US = 60000000

-- A factor just above one, greater than the rounding of three operations on doubles.
local ROUND_UP = 1 + 2 ^ -50

local match, format, floor = string.match, string.format, math.floor

local function refuse(reason)
  return redis.error_reply('FAIRSHARE ' .. reason)
end

-- The number that `text` stands for, if it is whole and small enough to be exact.
local function whole(text)
  local number = tonumber(text)
  return number and number >= 0 and number <= MAX and number % 1 == 0 and number
end

-- Exact for whole numbers up to 2^53: the quotient of doubles never rounds up to the next integer.
local function div_ceil(dividend, divisor)
  local quotient = floor(dividend / divisor)
  return quotient * divisor < dividend and quotient + 1 or quotient
end

-- What a value of ours says: `at`, the latest time that it has seen; `units`, all that it holds;
-- and what only its own form needs.
local function parse(text)
  -- "w1 window_us newest_start units newest", and then the older buckets, oldest first. A bucket
  -- is "last:count": the time of its last charge, and its units.
  local start, units, last, count, older =
    match(text, '^w1 %d+ (%d+) (%d+) (%d+):(%d+)(.*)$')
  if start then
    start, units, last, count = whole(start), whole(units), whole(last), whole(count)
    return start and units and last and count
      and { at = last, units = units, start = start, count = count, older = older }
  end
  -- "g1 at held per_us rate": a unit is per_us parts, and rate parts leak away each microsecond.
  local at, held, per_us = match(text, '^g1 (%d+) (%d+) (%d+) %d+$')
  at, held, per_us = whole(at), whole(held), whole(per_us)
  return at and held and per_us and per_us > 0
    and { at = at, units = div_ceil(held, per_us), held = held, per_us = per_us }
end

-- The sliding window ------------------------------------------------------------------------------

local function window_level(next)
  local cost, limit, window_us = whole(ARGV[next]), whole(ARGV[next + 1]), whole(ARGV[next + 2])
  if not (cost and limit and window_us) or window_us < 1 or window_us > MAX_WINDOW_US then
    return nil
  end
  return {
    key = '', is_window = true, cost = cost, capacity = limit, period_us = window_us,
    start = 0, last = 0, count = 0, older = '', units = 0,
    now = 0, found = false, repaired = false, fits = false, retry_us = 0,
  }, next + 3
end

-- Keeps what still counts of `value`, and says whether all of it could be read. Units of another
-- form count as spent when they were last seen.
local function window_load(level, value)
  local now, window_us = level.now, level.period_us
  if value.units == 0 or value.at + window_us <= now then
    return true
  end
  local units, older = value.units, value.older or ''
  local last, count, rest = match(older, '^ (%d+):(%d+)()')
  while last and last + window_us <= now do
    units, older = units - count, string.sub(older, rest)
    last, count, rest = match(older, '^ (%d+):(%d+)()')
  end
  level.units, level.older, level.last = units, older, value.at
  level.start, level.count = value.start or value.at, value.count or value.units
  return (last or older == '') and units >= level.count
end

local function window_decide(level)
  local missing = level.cost - (level.capacity - level.units)
  if missing <= 0 then
    level.fits = true
    return
  end
  level.retry_us = level.period_us
  for last, count in string.gmatch(level.older, ' (%d+):(%d+)') do
    missing = missing - count
    if missing <= 0 then
      level.retry_us = last + level.period_us - level.now
      return
    end
  end
  if missing <= level.count then
    level.retry_us = level.last + level.period_us - level.now
  end
end

local function window_charge(level, units)
  local now = level.now
  if level.units == 0 then
    level.start = now
  elseif now >= level.start + div_ceil(level.period_us, BUCKETS_PER_WINDOW) then
    local older = format('%s %.0f:%.0f', level.older, level.last, level.count)
    local _, buckets = string.gsub(older, ':', ':')
    if buckets == MAX_BUCKETS then -- Only after the window grew: the oldest two leave together.
      local one, last, other, rest = match(older, '^ %d+:(%d+) (%d+):(%d+)(.*)$')
      older = format(' %s:%.0f%s', last, one + other, rest)
    end
    level.older, level.start, level.count = older, now, 0
  end
  level.last, level.count, level.units = now, level.count + units, level.units + units
end

-- Takes `units` out of the bucket in which they were charged at `at_us`: the first that ends no
-- earlier. It is there for as long as that time itself lies within the window.
local function window_return(level, units, at_us)
  if level.units == 0 or at_us + level.period_us <= level.now then
    return
  end
  local older, found = '', false
  for last, count in string.gmatch(level.older, ' (%d+):(%d+)') do
    if not found and whole(last) >= at_us then
      found, units = true, math.min(units, whole(count))
      count = format('%.0f', count - units)
    end
    older = older .. ' ' .. last .. ':' .. count
  end
  if not found then
    units = math.min(units, level.count)
    level.count = level.count - units
  end
  level.older, level.units = older, level.units - units
end

-- The generic cell rate (ITU-T I.371 Annex A), as a leaky bucket ----------------------------------

local function gcra_level(next)
  local cost, rate = whole(ARGV[next]), whole(ARGV[next + 1])
  local per_us, burst = whole(ARGV[next + 2]), whole(ARGV[next + 3])
  if not (cost and rate and per_us and burst) or rate < 1 or per_us < 1 then
    return nil
  end
  local full = burst * per_us
  if full > MAX then
    return nil
  end
  -- The most there may be: the burst, and what leaks before the clock's next reading. Without the
  -- latter, traffic at exactly the rate would now and then be refused.
  local brim = math.min(MAX, full + (math.min(rate, per_us) - 1))
  return {
    key = '', is_window = false, cost = cost, capacity = burst,
    period_us = math.max(div_ceil(full, rate), per_us),
    rate = rate, per_us = per_us, full = full, brim = brim, held = 0,
    now = 0, found = false, repaired = false, fits = false, retry_us = 0,
  }, next + 4
end

-- Parts of one size in parts of another, rounded up, so that a change of the period frees nothing.
local function rescaled(held, old_per_us, new_per_us)
  local units = floor(held / old_per_us)
  local rest = (held - units * old_per_us) / old_per_us * new_per_us
  rest = math.min(new_per_us, math.ceil(rest * ROUND_UP))
  return math.min(MAX, units * new_per_us + rest)
end

-- Keeps what has not leaked of `value`. Units of another form count as spent when they were last
-- seen.
local function gcra_load(level, value)
  local rate, per_us, held = level.rate, level.per_us, value.held
  if not held then
    held = math.min(value.units, level.capacity) * per_us
  elseif value.per_us ~= per_us then
    held = rescaled(held, value.per_us, per_us)
  end
  local elapsed_us = level.now - value.at
  if elapsed_us < div_ceil(held, rate) then -- So the product is below `held`, and exact.
    level.held = held - elapsed_us * rate
  end
  return true
end

local function gcra_decide(level)
  local room = level.brim - level.cost * level.per_us
  if level.cost > level.capacity then
    level.retry_us = level.period_us
  elseif level.held > room then
    level.retry_us = div_ceil(level.held - room, level.rate)
  else
    level.fits = true
  end
end

-- Takes back what has not leaked of `units` since they were charged.
local function gcra_return(level, units, at_us)
  local leaked = math.max(0, level.now - at_us) * level.rate
  level.held = math.max(0, level.held - math.max(0, units * level.per_us - leaked))
end

-- The operations ----------------------------------------------------------------------------------

-- Reads the usage of a level. Returns the error, if there is one.
local function load(level, clock_us)
  local text = redis.pcall('GET', level.key)
  if type(text) == 'table' then
    return string.find(text.err, 'WRONGTYPE', 1, true) and refuse('wrong type') or text
  elseif not text then
    level.now = clock_us
    return nil
  end
  level.found = true
  local load_form = level.is_window and window_load or gcra_load
  local value = parse(text)
  if value and value.at <= clock_us + level.period_us + MAX_AHEAD_US then
    level.now = math.max(clock_us, value.at)
    if load_form(level, value) then
      return nil
    end
  end
  -- Not ours, or not of our time: it counts as a level that was wholly used just now.
  level.repaired, level.now = true, clock_us
  load_form(level, { at = clock_us, units = math.max(1, level.capacity) })
end

local function decide_level(level)
  level.fits, level.retry_us = false, 0
  if level.is_window then
    window_decide(level)
  else
    gcra_decide(level)
  end
end

-- The levels, each decided by itself and with the `extra` numbers that the operation adds, or nil
-- and an error.
local function load_levels(clock_us, extra)
  local levels, seen, next = {}, {}, 3
  for i, key in ipairs(KEYS) do
    local level
    if ARGV[next] == 'w' then
      level, next = window_level(next + 1)
    elseif ARGV[next] == 'g' then
      level, next = gcra_level(next + 1)
    end
    if not level or seen[key] then
      return nil, refuse('bad argument')
    end
    levels[i], seen[key], level.key = level, true, key
    for n = 1, extra do
      level[n] = whole(ARGV[next])
      if not level[n] then
        return nil, refuse('bad argument')
      end
      next = next + 1
    end
    local problem = load(level, clock_us)
    if problem then
      return nil, problem
    end
    decide_level(level)
  end
  if next ~= #ARGV + 1 then
    return nil, refuse('bad argument')
  end
  return levels
end

-- What is left of a level, and when all of it is free again.
local function left(level)
  if level.is_window then
    return math.max(0, level.capacity - level.units),
      level.units > 0 and level.last + level.period_us - level.now or 0
  end
  return math.max(0, floor((level.full - level.held) / level.per_us)),
    div_ceil(level.held, level.rate)
end

-- Writes what must be written, and says what is left and when all is free again; or nil and the
-- error of Redis.
local function settle(level, changed, clock_us)
  local remaining, reset_us = left(level)
  local done
  local ttl_ms = div_ceil(level.now - clock_us + reset_us, 1000) + SLACK_MS
  if changed or level.repaired then
    local text
    if level.is_window then
      text = format('w1 %.0f %.0f %.0f %.0f:%.0f%s', level.period_us, level.start, level.units,
        level.last, level.count, level.older)
    else
      text = format('g1 %.0f %.0f %.0f %.0f', level.now, level.held, level.per_us, level.rate)
    end
    done = redis.pcall('SET', level.key, text, 'PX', ttl_ms)
  elseif level.found and redis.call('PTTL', level.key) == -1 then
    done = redis.pcall('PEXPIRE', level.key, ttl_ms)
  end
  if type(done) == 'table' and done.err then
    return nil, done
  end
  return remaining, reset_us
end

local function charge(level, units)
  if level.is_window then
    window_charge(level, units)
  else
    level.held = level.held + units * level.per_us
  end
end

local function all_fit(levels)
  for _, level in ipairs(levels) do
    if not level.fits then
      return false
    end
  end
  return true
end

local function decide(clock_us)
  local levels, problem = load_levels(clock_us, 0)
  if not levels then
    return problem
  end
  local admitted = all_fit(levels)
  local reply = { admitted and 1 or 0 }
  for i, level in ipairs(levels) do
    local charged = admitted and level.cost > 0
    if charged then
      charge(level, level.cost)
    end
    local remaining, reset_us = settle(level, charged, clock_us)
    if not remaining then
      return reset_us
    end
    local at = 4 * i - 2
    reply[at] = level.fits and 1 or 0
    reply[at + 1] = remaining
    reply[at + 2] = level.retry_us
    reply[at + 3] = level.fits and reset_us or math.max(reset_us, level.retry_us)
  end
  return reply
end

-- Units to grant where the cost fits: never more than there is room for.
local function grant(level, firm, ahead)
  local room = left(level)
  local granted = math.max(level.cost, math.min(room, firm))
  return granted + math.min(ahead, floor(math.max(0, room - granted) / 4))
end

local function lease(clock_us)
  local levels, problem = load_levels(clock_us, 2)
  if not levels then
    return problem
  end
  local admitted = all_fit(levels)
  local reply = { clock_us }
  for i, level in ipairs(levels) do
    local granted = admitted and grant(level, level[1], level[2]) or 0
    if granted > 0 then
      charge(level, granted)
      decide_level(level)
    end
    local remaining, reset_us = settle(level, granted > 0, clock_us)
    if not remaining then
      return reset_us
    end
    local at = 5 * i - 3
    reply[at] = granted
    reply[at + 1] = level.fits and 1 or 0
    reply[at + 2] = remaining
    reply[at + 3] = level.retry_us
    reply[at + 4] = level.fits and reset_us or math.max(reset_us, level.retry_us)
  end
  return reply
end

local function take_back(clock_us)
  local levels, problem = load_levels(clock_us, 1)
  if not levels then
    return problem
  end
  for _, level in ipairs(levels) do
    if level.is_window then
      window_return(level, level.cost, level[1])
    else
      gcra_return(level, level.cost, level[1])
    end
    local remaining, failure = settle(level, level.found, clock_us)
    if not remaining then
      return failure
    end
  end
  return { 1 }
end

local clock = redis.call('TIME')
local operations = { decide = decide, lease = lease, ['return'] = take_back }

if ARGV[1] ~= '1' or not operations[ARGV[2]] then
  return refuse('unknown operation')
end
if #KEYS == 0 or #KEYS > MAX_KEYS then
  return refuse('bad argument')
end
return operations[ARGV[2]](clock[1] * 1000000 + clock[2])
