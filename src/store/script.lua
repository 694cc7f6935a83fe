-- Decides in Redis: every level of all global limits of a request, together.
--
-- KEYS   the epoch's record, and one key per level; all of them lie in one hash slot.
-- ARGV   "1" (the version of this protocol), the operation, what the caller knows of the epoch (its
--        number, and a sequence number within it; 0 0 for nothing), "1" where this may be another
--        server than before or else "0", and then for each key of a level in turn
--          "w" cost limit window_us        a sliding window, or
--          "g" cost rate per_us burst      a generic cell rate
--        with "W" or "G" for a level that holds after a loss, and what the operation adds:
-- decide   Charges the cost on every key, or on none.
-- lease    adds  firm ahead . Where the cost fits on every key, charges each the cost as often as
--          all of them have room for it, up to `firm`, and of what is left then a quarter, up to
--          `ahead`, in whole costs; else none.
-- return   adds  at_us , the clock of a charge. Takes back `cost` units of those charged then, or
--          what is left of them; of a level that is rebuilt, only those of this epoch.
-- restore  adds five times  at_us units : units that a caller knows to be charged, after a loss.
-- poll     has no keys of levels, and only asks about the epoch. It writes the record again, so its
--          answer says that the store takes what is written.
--
-- The reply is integers: the epoch's number, the sequence number in it and why it began, the clock,
-- and whether every cost fits; then for each key the units charged, whether the cost would fit,
-- remaining, retry_after_us, reset_after_us. After a lease, the cost is that of a further one.
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

-- For how long nothing is granted in a new epoch, so that every node notices; and for how long after
-- a report, of which more may follow, but no longer than the last of these in all.
local PAUSE_US, REPORT_US, MAX_PAUSE_US = 500000, 200000, 5000000

-- Pairs of time and units in one report about one key.
local PARTS_MAX = 5

-- The epoch's record outlives all that was written in the epoch by this much.
local KEEP_US = 30 * 86400000000

-- A factor just above one, greater than the rounding of three operations on doubles.
local ROUND_UP = 1 + 2 ^ -50

local match, format, floor = string.match, string.format, math.floor
local min, max = math.min, math.max

local function refuse(reason)
  return redis.error_reply('FAIRSHARE ' .. reason)
end

-- The latest time of the store: `TIME`, but not before the epoch's begin.
local now_us = 0

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

-- The epoch ---------------------------------------------------------------------------------------

-- `number` and `seq` tell states of the store apart: each change counts `seq` on, so a state of which
-- a caller knows a later one has lost something. Values dated before `since_us` are of an earlier
-- epoch and say nothing. Until `ready_us`, levels that are rebuilt grant nothing.
local epoch = { number = 0, seq = 0, since_us = 0, ready_us = 0, expires_us = 0, why = 0, run = '-' }

-- The text under a key, or nil and an error, if there is one.
local function get(key)
  local text = redis.pcall('GET', key)
  if type(text) ~= 'table' then
    return text
  end
  return nil, string.find(text.err, 'WRONGTYPE', 1, true) and refuse('wrong type') or text
end

-- The name of this run of this server; "-" where the user may not ask.
local function run_id()
  local info = redis.pcall('INFO', 'server')
  return type(info) == 'string' and match(info, 'run_id:(%x+)') or '-'
end

local function read_epoch(text)
  local number, seq, since_us, ready_us, expires_us, why, run =
    match(text or '', '^e1 (%d+) (%d+) (%d+) (%d+) (%d+) (%d) (%S+)$')
  since_us, ready_us, expires_us = whole(since_us), whole(ready_us), whole(expires_us)
  number, seq = whole(number), whole(seq)
  -- Nothing counts so far. What comes near MAX could not be counted on.
  if not (number and seq and since_us and ready_us and expires_us)
    or since_us > now_us + MAX_AHEAD_US or max(number, seq) > MAX / 2 then
    return false
  end
  epoch.number, epoch.seq, epoch.why, epoch.run = number, seq, tonumber(why), run
  epoch.since_us, epoch.expires_us = since_us, expires_us
  epoch.ready_us = min(ready_us, since_us + MAX_PAUSE_US)
  return true
end

-- Reads the record, or begins a new epoch where the store has lost what it held: the record itself
-- (1), or changes that the caller has seen (2); or where it may have: under another server than the
-- one that wrote the record (3). Returns the error, if there is one, and whether to write.
local function open_epoch()
  local number, seq = whole(ARGV[3]), whole(ARGV[4])
  if not (number and seq) then
    return refuse('bad argument')
  end
  local text, problem = get(KEYS[1])
  if problem then
    return problem
  end
  local why, run
  if not read_epoch(text) then
    why = 1
  elseif number > epoch.number or number == epoch.number and seq > epoch.seq then
    why = 2
  end
  if why or ARGV[5] == '1' then
    run = run_id()
    if not why and run ~= '-' and epoch.run ~= '-' and run ~= epoch.run then
      why = 3
    end
  end
  if why then
    epoch.number = max(now_us, epoch.number + 1, number + 1)
    epoch.seq, epoch.why, epoch.run = 0, why, run
    epoch.since_us, epoch.ready_us = now_us, now_us + PAUSE_US
    return nil, true
  end
  now_us = max(now_us, epoch.since_us)
  if run and run ~= '-' and run ~= epoch.run then
    epoch.run = run
    return nil, true
  end
end

-- Writes the record, for as long as what is charged for up to `period_us` counts, and then some.
local function write_epoch(period_us)
  epoch.expires_us = max(epoch.expires_us, min(MAX, now_us + period_us + KEEP_US))
  local text = format('e1 %.0f %.0f %.0f %.0f %.0f %d %s', epoch.number, epoch.seq,
    epoch.since_us, epoch.ready_us, epoch.expires_us, epoch.why, epoch.run)
  local done = redis.pcall('SET', KEYS[1], text, 'PX', div_ceil(epoch.expires_us - now_us, 1000))
  return done.err and done
end

-- The sliding window ------------------------------------------------------------------------------

local function window_level(next)
  local cost, limit, window_us = whole(ARGV[next]), whole(ARGV[next + 1]), whole(ARGV[next + 2])
  if not (cost and limit and window_us) or window_us < 1 or window_us > MAX_WINDOW_US then
    return nil
  end
  return {
    key = '', is_window = true, hold = false, changed = false, cost = cost, capacity = limit, period_us = window_us,
    start = 0, last = 0, count = 0, older = '', units = 0,
    now = 0, found = false, repaired = false, fits = false, retry_us = 0, granted = 0,
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

-- What was charged before the key was there is not in it, where the key alone was lost: what comes back of
-- that finds this bucket, which stays empty, and no other.
local function window_begin(level)
  if level.found then
    return ''
  end
  return format(' %.0f:0', max(0, level.now - 1))
end

local function window_charge(level, units)
  local now = level.now
  if level.units == 0 and not level.found then
    level.start, level.older = now, window_begin(level)
  elseif level.count == 0 then -- There is nothing, or what was there has gone back.
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
      found, units = true, min(units, whole(count))
      count = format('%.0f', count - units)
    end
    older = older .. ' ' .. last .. ':' .. count
  end
  if not found then
    units = min(units, level.count)
    level.count = level.count - units
  end
  level.older, level.units = older, level.units - units
end

-- Counts `units` that were charged at `at_us` in the first bucket that ends no earlier, where that is
-- not much later or there is no room for another. The newest one ends now, so that the value is of
-- this epoch.
local function window_restore(level, units, at_us)
  if level.units == 0 then
    level.start, level.last, level.count, level.older = level.now, level.now, 0, window_begin(level)
  elseif at_us > level.last then
    local now = level.now
    level.now = at_us
    window_charge(level, units)
    level.now = now
    return
  end
  local near_us = div_ceil(level.period_us, BUCKETS_PER_WINDOW)
  local _, buckets = string.gsub(level.older, ':', ':')
  if buckets >= MAX_BUCKETS - 1 then
    near_us = MAX
  end
  local older, apart = '', format(' %.0f:%.0f', at_us, units)
  level.units = level.units + units
  for last, count in string.gmatch(level.older, ' (%d+):(%d+)') do
    last = whole(last)
    if units > 0 and last >= at_us then
      if last - at_us < near_us and (near_us == MAX or whole(count) > 0) then
        count = whole(count) + units
      else
        older = older .. apart
      end
      units = 0
    end
    older = format('%s %.0f:%.0f', older, last, count)
  end
  if units > 0 and level.last - at_us < near_us then
    level.count = level.count + units
  elseif units > 0 then
    older = older .. apart
  end
  level.older = older
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
  local brim = min(MAX, full + (min(rate, per_us) - 1))
  return {
    key = '', is_window = false, hold = false, changed = false, cost = cost, capacity = burst,
    period_us = max(div_ceil(full, rate), per_us),
    rate = rate, per_us = per_us, full = full, brim = brim, held = 0,
    now = 0, found = false, repaired = false, fits = false, retry_us = 0, granted = 0,
  }, next + 4
end

-- Parts of one size in parts of another, rounded up, so that a change of the period frees nothing.
local function rescaled(held, old_per_us, new_per_us)
  local units = floor(held / old_per_us)
  local rest = (held - units * old_per_us) / old_per_us * new_per_us
  rest = min(new_per_us, math.ceil(rest * ROUND_UP))
  return min(MAX, units * new_per_us + rest)
end

-- Keeps what has not leaked of `value`. Units of another form count as spent when they were last
-- seen.
local function gcra_load(level, value)
  local rate, per_us, held = level.rate, level.per_us, value.held
  if not held then
    held = min(value.units, level.capacity) * per_us
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
  local leaked = max(0, level.now - at_us) * level.rate
  level.held = max(0, level.held - max(0, units * level.per_us - leaked))
end

-- Counts `units` as if none had leaked: when others came is not known here.
local function gcra_restore(level, units)
  local held = min(level.full, level.held + units * level.per_us)
  level.held = max(level.held, held)
end

-- The operations ----------------------------------------------------------------------------------

-- Makes it a level that was wholly used at `at_us`.
local function fill(level, at_us)
  local load_form = level.is_window and window_load or gcra_load
  load_form(level, { at = at_us, units = max(1, level.capacity) })
end

-- Reads the usage of a level. Returns the error, if there is one.
local function load(level)
  level.now = now_us
  local text, problem = get(level.key)
  if problem then
    return problem
  end
  local value = text and parse(text)
  local is_held = level.hold and now_us < epoch.since_us + level.period_us
  if is_held then
    -- All that there may be may have been lost. Nothing in the store can say less, not even a value of
    -- an earlier epoch that looks younger, because the clock has gone back.
    fill(level, epoch.since_us)
  end
  -- What is of an earlier epoch is incomplete.
  if not text or value and value.at < epoch.since_us then
    return nil
  end
  level.found = true
  if is_held and value then
    if not level.is_window then
      local least = level.held
      value.at = min(value.at, now_us)
      gcra_load(level, value)
      level.held = max(level.held, least)
    end
    return nil
  end
  local load_form = level.is_window and window_load or gcra_load
  if value and value.at <= now_us + level.period_us + MAX_AHEAD_US then
    level.now = max(now_us, value.at)
    if load_form(level, value) then
      return nil
    end
  end
  -- Not ours, or not of our time: it counts as a level that was wholly used just now.
  level.repaired, level.now = true, now_us
  fill(level, now_us)
end

local function decide_level(level)
  level.fits, level.retry_us = false, 0
  if level.is_window then
    window_decide(level)
  else
    gcra_decide(level)
  end
  if epoch.ready_us > now_us and not level.hold then
    level.fits, level.retry_us = false, max(level.retry_us, epoch.ready_us - now_us)
  end
end

-- The levels, each decided by itself and with the `extra` numbers that the operation adds, or nil
-- and an error.
local function load_levels(extra)
  local levels, seen, next = {}, {}, 6
  for i = 2, #KEYS do
    local key, form, level = KEYS[i], ARGV[next], nil
    if form == 'w' or form == 'W' then
      level, next = window_level(next + 1)
    elseif form == 'g' or form == 'G' then
      level, next = gcra_level(next + 1)
    end
    if not level or seen[key] then
      return nil, refuse('bad argument')
    end
    levels[i - 1], seen[key], level.key = level, true, key
    level.hold = form == 'W' or form == 'G'
    for n = 1, extra do
      level[n] = whole(ARGV[next])
      if not level[n] then
        return nil, refuse('bad argument')
      end
      next = next + 1
    end
    local problem = load(level)
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
    return max(0, level.capacity - level.units),
      level.units > 0 and level.last + level.period_us - level.now or 0
  end
  return max(0, floor((level.full - level.held) / level.per_us)),
    div_ceil(level.held, level.rate)
end

-- Writes what must be written, and says what is left and when all is free again; or nil and the
-- error of Redis.
local function settle(level)
  local remaining, reset_us = left(level)
  local done
  local ttl_ms = div_ceil(level.now - now_us + reset_us, 1000) + SLACK_MS
  if level.changed or level.repaired then
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
  level.changed = true
  if level.is_window then
    window_charge(level, units)
  else
    level.held = level.held + units * level.per_us
  end
  return units
end

-- The changes that operations make to a level; each returns the units that it charged.

local function decide(level, admitted)
  return admitted and level.cost > 0 and charge(level, level.cost) or 0
end

-- How often a level has room for the cost, where it has, of those times that are wanted.
local function fitting(level)
  if level.cost == 0 then
    return MAX
  end
  local room = level.is_window and level.capacity - level.units
    or floor((level.brim - level.held) / level.per_us)
  return floor(min(room, max(level.cost, level[1])) / level.cost)
end

-- Charges the cost as often as all levels have room for it, and never more than there is room for. Less
-- than a cost would lie in a lease where no request can use it.
local function lease(level, admitted, times)
  if not admitted then
    return 0
  end
  local room = left(level)
  local granted = level.cost > 0 and level.cost * times or min(room, level[1])
  local ahead = min(level[2], floor(max(0, room - granted) / 4))
  granted = granted + ahead - ahead % max(1, level.cost)
  if granted > 0 then
    charge(level, granted)
    decide_level(level)
  end
  return granted
end

-- What was charged in an earlier epoch is not given back to a level that is rebuilt: its caller will not
-- report it any more, so it would be taken out of what others have reported.
local function take_back(level)
  local at_us = level[1]
  level.changed = level.found
    and (level.hold or at_us >= epoch.since_us and whole(ARGV[3]) == epoch.number)
  if level.changed then
    local return_form = level.is_window and window_return or gcra_return
    return_form(level, level.cost, at_us)
  end
  return 0
end

-- A level that holds counts as wholly used: since the epoch began, or, where one key alone was lost,
-- from now on.
local function restore(level)
  level.changed = true
  if level.hold then
    if now_us >= epoch.since_us + level.period_us then
      fill(level, level.now)
    end
    return 0
  end
  -- A bucket that was never empty still holds of what is older than a period. So reports about it are
  -- taken as if all came when the epoch began, or those that come late would leave that out.
  local since_us = epoch.since_us
  local from_us = not level.is_window and level.now < since_us + level.period_us and since_us
    or level.now
  for n = 1, PARTS_MAX do
    local at_us, units = min(level[2 * n - 1], level.now), level[2 * n]
    if units > 0 and at_us + level.period_us > from_us then
      if level.is_window then
        window_restore(level, units, at_us)
      else
        gcra_restore(level, units)
      end
    end
  end
  if epoch.ready_us > now_us then
    local ready_us = min(now_us + REPORT_US, epoch.since_us + MAX_PAUSE_US)
    epoch.ready_us = max(epoch.ready_us, ready_us)
  end
  return 0
end

-- Runs an operation: what it does to each level, how many numbers it adds, how often one of them may
-- be charged, and whether the record is written in any case.
local function run(change, extra, often, must_write)
  local problem, write = open_epoch()
  if problem then
    return problem
  end
  local levels
  levels, problem = load_levels(extra)
  if not levels then
    return problem
  end
  local admitted, times, changed, period_us = true, MAX, false, 0
  for _, level in ipairs(levels) do
    admitted = admitted and level.fits
    times = admitted and often and min(times, often(level)) or times
  end
  for _, level in ipairs(levels) do
    level.granted = change(level, admitted, times)
    changed = changed or level.changed
    period_us = max(period_us, level.period_us)
  end
  if changed then
    epoch.seq = epoch.seq + 1
  end
  if changed or write or must_write or epoch.expires_us < now_us + KEEP_US / 2 then
    problem = write_epoch(period_us)
    if problem then
      return problem
    end
  end
  local reply = { epoch.number, epoch.seq, epoch.why, now_us, admitted and 1 or 0 }
  for i, level in ipairs(levels) do
    local remaining, reset_us = settle(level)
    if not remaining then
      return reset_us
    end
    local at = 5 * i
    reply[at + 1] = level.granted
    reply[at + 2] = level.fits and 1 or 0
    reply[at + 3] = remaining
    reply[at + 4] = level.retry_us
    reply[at + 5] = level.fits and reset_us or max(reset_us, level.retry_us)
  end
  return reply
end

local clock = redis.call('TIME')
now_us = clock[1] * 1000000 + clock[2]

local name = ARGV[1] == '1' and ARGV[2]
if #KEYS == 0 or #KEYS > MAX_KEYS + 1 or #KEYS == 1 and name ~= 'poll' then
  return refuse('bad argument')
elseif name == 'lease' then
  return run(lease, 2, fitting)
elseif name == 'decide' or name == 'poll' then
  return run(decide, 0, nil, name == 'poll')
elseif name == 'return' then
  return run(take_back, 1)
elseif name == 'restore' then
  return run(restore, 2 * PARTS_MAX)
end
return refuse('unknown operation')
