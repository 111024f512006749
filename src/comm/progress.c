#include "comm/progress.h"

#include "base/log.h"

#include <stdio.h>
#include <time.h>

double progress_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

void progress_init(Progress *progress)
{
    *progress = (Progress){.num_phases = 1, .since = progress_now()};
    snprintf(progress->phases[0].name, PROGRESS_NAME, "start");
}

/* A sign: the time since the last one belongs to the phase it was in. */
static void sign(Progress *progress)
{
    double         now = progress_now(), took = now - progress->since;
    ProgressPhase *phase = &progress->phases[progress->phase];
    if (progress->waits)
        progress->waited += took;
    else if (took > phase->longest)
        phase->longest = took;
    if (progress->named) log_info("a rank named above moves again, after %.0f s in phase %s", took, phase->name);
    progress->named = false;
    progress->since = now;
}

void progress_beat(Progress *progress, const char *phase)
{
    char name[PROGRESS_NAME];
    snprintf(name, sizeof name, "%s", phase);
    sign(progress);
    for (progress->phase = 0; progress->phase < progress->num_phases; progress->phase++)
        if (strcmp(progress->phases[progress->phase].name, name) == 0) return;
    if (progress->num_phases < PROGRESS_PHASES) progress->num_phases++;
    progress->phase = progress->num_phases - 1; /* one too many takes the last one's place */
    progress->phases[progress->phase] = (ProgressPhase){0};
    memcpy(progress->phases[progress->phase].name, name, sizeof name);
}

void progress_enter(Progress *progress)
{
    sign(progress);
    progress->waits = true;
}

void progress_leave(Progress *progress)
{
    sign(progress);
    progress->waits = false;
}

double progress_silence(const Progress *progress, double now)
{
    return progress->waits || now < progress->since ? 0 : now - progress->since;
}

double progress_limit(const Progress *progress, const CommLimits *limits)
{
    double longest = 5 * progress->phases[progress->phase].longest;
    return longest > limits->progress ? longest : limits->progress;
}

bool progress_judge(Progress *progress, int rank, const CommLimits *limits, double now, char *why, size_t size)
{
    double      silence = progress_silence(progress, now), limit = progress_limit(progress, limits);
    const char *phase = progress->phases[progress->phase].name;
    if (silence <= limit) return false;
    snprintf(why, size, "no progress for %.1f s in phase %s (limit: %.1f s)", silence, phase, limit);
    if (!progress->named) log_warn("rank %d: %s; unless it moves, all ranks end in %.1f s", rank, why, limits->grace);
    progress->named = true;
    return silence > limit + limits->grace;
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
