-- Counting anew after a loss, one step at a time, by one process at a time. Nothing is admitted
-- until the last step has set the epoch.
--
-- ARGV: the step, the builder's token, and what the step needs.
local step, token = ARGV[1], ARGV[2]
local lock = prefix .. 'building'
if current_epoch() then
    return 'present'
end
-- What was built in another life may be behind as well.
local claim = life .. ' ' .. token
local builder = redis.call('get', lock)
if builder and string.sub(builder, 1, #life + 1) ~= life .. ' ' then
    builder = nil
end
if builder and builder ~= claim then
    return 'busy'
end

if step == 'begin' then
    -- A version before this one would go on by an epoch of another life, and what it admits would be
    -- neither counted here nor on record.
    redis.call('hdel', meta, 'epoch')
    redis.call('set', lock, claim, 'px', ARGV[3])
    return 'yours'
end
if not builder then
    return 'busy'
end
redis.call('pexpire', lock, ARGV[3])

if step == 'clear' then
    redis.call('del', meta, held, budgets, live, day .. ARGV[4], month .. ARGV[5])
elseif step == 'fill' then
    for _, entry in ipairs(cjson.decode(ARGV[4])) do
        if entry[2] == cjson.null then
            redis.call('del', prefix .. entry[1])
        else
            redis.call('hset', prefix .. entry[1], entry[2], entry[3])
            if string.sub(entry[1], 1, 7) == 'minute:' then
                redis.call('expire', prefix .. entry[1], MINUTE + 1)
            end
        end
    end
elseif step == 'finish' then
    redis.call('expire', day .. ARGV[4], 172800)
    redis.call('expire', month .. ARGV[5], 2764800)
    redis.call('hset', meta, 'epoch', token, 'rules', ARGV[6], 'life', life)
    redis.call('del', lock)
end
return 'yours'
