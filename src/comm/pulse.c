#include "comm/pulse.h"

#include "base/log.h"

#include <stdio.h>
#include <time.h>

double pulse_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

void pulse_init(Pulse *pulse)
{
    *pulse = (Pulse){.num_phases = 1, .since = pulse_now()};
    snprintf(pulse->phases[0].name, PULSE_NAME, "start");
}

/* Handles a sign of progress: the time since the previous sign counts for the phase that the rank was in, or as waiting. */
static void sign(Pulse *pulse)
{
    double      now = pulse_now(), took = now - pulse->since;
    PulsePhase *phase = &pulse->phases[pulse->phase];
    if (pulse->waits)
        pulse->waited += took;
    else if (took > phase->longest)
        phase->longest = took;
    if (pulse->named) log_info("a rank named above moves again, after %.0f s in phase %s", took, phase->name);
    pulse->named = false;
    pulse->since = now;
}

void pulse_beat(Pulse *pulse, const char *phase)
{
    char name[PULSE_NAME];
    snprintf(name, sizeof name, "%s", phase);
    sign(pulse);
    for (pulse->phase = 0; pulse->phase < pulse->num_phases; pulse->phase++)
        if (strcmp(pulse->phases[pulse->phase].name, name) == 0) return;
    if (pulse->num_phases < PULSE_PHASES) pulse->num_phases++;
    pulse->phase = pulse->num_phases - 1; /* if there are too many phases, the newest replaces the last */
    pulse->phases[pulse->phase] = (PulsePhase){0};
    memcpy(pulse->phases[pulse->phase].name, name, sizeof name);
}

void pulse_enter(Pulse *pulse)
{
    sign(pulse);
    pulse->waits = true;
}

void pulse_leave(Pulse *pulse)
{
    sign(pulse);
    pulse->waits = false;
}

double pulse_silence(const Pulse *pulse, double now)
{
    return pulse->waits || now < pulse->since ? 0 : now - pulse->since;
}

double pulse_limit(const Pulse *pulse, const CommLimits *limits)
{
    double longest = 5 * pulse->phases[pulse->phase].longest;
    return longest > limits->progress ? longest : limits->progress;
}

bool pulse_judge(Pulse *pulse, int rank, const CommLimits *limits, double now, char *why, size_t size)
{
    double      silence = pulse_silence(pulse, now), limit = pulse_limit(pulse, limits);
    const char *phase = pulse->phases[pulse->phase].name;
    if (silence <= limit) return false;
    snprintf(why, size, "no progress for %.1f s in phase %s (limit: %.1f s)", silence, phase, limit);
    if (!pulse->named) log_warn("rank %d: %s; unless it moves, all ranks end in %.1f s", rank, why, limits->grace);
    pulse->named = true;
    return silence > limit + limits->grace;
}

void pulse_told(Pulse *pulse, const char *phase, double longest, double silence, bool waits)
{
    double since = pulse_now() - silence;
    if (since > pulse->since + 0.1) pulse->named = false; /* the rank gave a sign since the warning */
    pulse->since = since;
    pulse->waits = waits;
    pulse->phase = 0;
    pulse->phases[0].longest = longest;
    snprintf(pulse->phases[0].name, PULSE_NAME, "%s", phase);
}

CommLimits comm_limits(const CommLimits *given)
{
    CommLimits limits = given ? *given : (CommLimits){0};
    if (limits.progress <= 0) limits.progress = 60;
    if (limits.grace <= 0) limits.grace = 10;
    return limits;
}

bool comm_end_keep(CommEnd *end, int rank, Status cause, const char *why)
{
    if (end->ended) return false;
    *end = (CommEnd){.ended = true, .rank = rank, .cause = cause};
    snprintf(end->why, sizeof end->why, "%s", why);
    return true;
}

Status comm_end_status(const CommEnd *end)
{
    FAIL_IF(end->ended, ERR_RANK, "rank %d: %s", end->rank, end->why);
    return OK;
}

void comm_life_init(CommLife *life, const CommLimits *limits)
{
    pthread_condattr_t attributes;
    life->limits = comm_limits(limits);
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_mutex_init(&life->lock, NULL);
    pthread_cond_init(&life->changed, &attributes);
    pthread_condattr_destroy(&attributes);
}

void comm_life_deinit(CommLife *life)
{
    pthread_cond_destroy(&life->changed);
    pthread_mutex_destroy(&life->lock);
}

void comm_locked_end(Comm *comm, int rank, Status cause, const char *why)
{
    CommLife *life = comm->side->life;
    if (!comm_end_keep(&life->end, rank, cause, why)) return;
    pthread_cond_broadcast(&life->changed);
    comm->api->wake(comm);
}

bool comm_locked_tell(Comm *comm)
{
    CommSide *side = comm->side;
    void (*on_end)(void *context) = side->on_end;
    void *context = side->context;
    if (!on_end) return false;
    side->on_end = NULL;
    side->is_telling = true;
    pthread_mutex_unlock(&side->life->lock);
    on_end(context);
    pthread_mutex_lock(&side->life->lock);
    side->is_telling = false;
    pthread_cond_broadcast(&side->life->changed);
    return true;
}

void comm_locked_await_telling(Comm *comm)
{
    while (comm->side->is_telling) pthread_cond_wait(&comm->side->life->changed, &comm->side->life->lock);
}
