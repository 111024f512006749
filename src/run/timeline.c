/* See timeline.h. */
#include "run/timeline.h"

#include <math.h>
#include <string.h>

double launch_seconds(const DeviceFacts *facts, const Launch *launch)
{
    const OpRate *rate = facts->rates;
    for (; rate && rate->op; rate++)
        if (strcmp(rate->op, launch->node->op->name) == 0) break;
    if (!rate || !rate->op) return launch_limit_seconds(facts, launch, 1);
    OpCost cost = launch_cost(launch);
    double compute = rate->flops > 0 ? cost.flops / rate->flops : 0, memory = rate->bytes > 0 ? cost.bytes / rate->bytes : 0;
    return rate->seconds + fmax(fmax(compute, memory), launch_link_seconds(facts, launch));
}

double launch_power_seconds(const DeviceFacts *facts, const Launch *launch)
{
    if (!(facts->power_bytes > 0)) return 0;
    OpCost cost = launch_cost(launch);
    double rate = DT_SET(launch_operand_dtype(launch)) & DT_SET_FP8 ? facts->power_fp8_flops : facts->power_flops;
    return (cost.matrix_unit ? cost.flops / rate : 0) + cost.bytes / facts->power_bytes;
}

/* The launch that ends last among those that launch `index` must start after; -1: none. */
static int latest_before(const Timeline *t, const Launch *launches, int index, const int last[STREAM_COUNT])
{
    int latest = last[launches[index].stream] - 1;
    for (int s = 0; s < STREAM_COUNT; s++) {
        int other = launches[index].wait[s] - 1;
        if (other >= 0 && (latest < 0 || t->end[other] > t->end[latest])) latest = other;
    }
    return latest;
}

void timeline_simulate(Arena *arena, const DeviceFacts *facts, const Launch *launches, int count, Timeline *out)
{
    int  last[STREAM_COUNT] = {0}, final = -1;
    int *before = arena_array(arena, int, count + 1);
    *out = (Timeline){.start = arena_array(arena, double, count + 1),
                      .end = arena_array(arena, double, count + 1),
                      .critical = arena_array(arena, int, count + 1)};
    for (int i = 0; i < count; i++) {
        double seconds = launch_seconds(facts, &launches[i]);
        before[i] = latest_before(out, launches, i, last);
        out->start[i] = before[i] < 0 ? 0 : out->end[before[i]];
        out->end[i] = out->start[i] + seconds;
        out->busy[launches[i].stream] += seconds;
        out->power_seconds += launch_power_seconds(facts, &launches[i]);
        last[launches[i].stream] = i + 1;
        if (final < 0 || out->end[i] > out->end[final]) final = i;
    }
    if (final >= 0) out->seconds = fmax(out->end[final], out->power_seconds);
    for (int i = final; i >= 0; i = before[i]) out->num_critical++;
    for (int i = final, k = out->num_critical; i >= 0; i = before[i]) out->critical[--k] = i;
}

void timeline_print_streams(const Timeline *timeline, const Launch *launches, StrBuf *out)
{
    double critical[STREAM_COUNT] = {0};
    int    streams = 0;
    if (timeline->power_seconds > 0 && timeline->power_seconds >= timeline->seconds)
        strbuf_printf(out, "power lets it take no less than %10.3f ms\n", 1e3 * timeline->power_seconds);
    for (int s = 0; s < STREAM_COUNT; s++) streams += timeline->busy[s] > 0;
    if (streams < 2) return;
    for (int i = 0; i < timeline->num_critical; i++) {
        int launch = timeline->critical[i];
        critical[launches[launch].stream] += timeline->end[launch] - timeline->start[launch];
    }
    for (int s = 0; s < STREAM_COUNT; s++)
        if (timeline->busy[s] > 0)
            strbuf_printf(out, "stream %-9s busy %10.3f ms, on the critical path %10.3f ms\n", stream_name((Stream)s),
                          1e3 * timeline->busy[s], 1e3 * critical[s]);
}
