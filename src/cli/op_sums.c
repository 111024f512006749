#include "cli/op_sums.h"

#include "ops/ops.h"

#include <stdlib.h>
#include <string.h>

OpSum *op_sums_of(Arena *arena, OpSums *sums, const Launch *launch)
{
    for (int i = 0; i < sums->count; i++)
        if (strcmp(sums->items[i].op, launch->node->op->name) == 0 && strcmp(sums->items[i].kernel, launch->kernel.name) == 0)
            return &sums->items[i];
    OpSum *items = arena_array(arena, OpSum, sums->count + 1);
    if (sums->count) memcpy(items, sums->items, sizeof *items * (size_t)sums->count);
    sums->items = items;
    OpSum *sum = &items[sums->count++];
    *sum = (OpSum){.op = launch->node->op->name, .kernel = launch->kernel.name};
    return sum;
}

static int by_seconds(const void *a, const void *b)
{
    double x = ((const OpSum *)a)->seconds, y = ((const OpSum *)b)->seconds;
    return (x < y) - (x > y);
}

void op_sums_sort(OpSums *sums)
{
    if (sums->count) qsort(sums->items, (size_t)sums->count, sizeof *sums->items, by_seconds);
}

void op_sums_print(const OpSums *sums, double step_seconds, StrBuf *out)
{
    strbuf_puts(out, "\nop                   kernel       launches         ms       %     TFLOP/s      GB/s    of its limit\n");
    for (int i = 0; i < sums->count; i++) {
        const OpSum *s = &sums->items[i];
        strbuf_printf(out, "%-20s %-12s %8d %10.3f %7.1f %11.2f %9.1f", s->op, s->kernel, s->launches, 1e3 * s->seconds,
                      100 * s->seconds / sums->seconds, s->flops / s->seconds * 1e-12, s->bytes / s->seconds * 1e-9);
        if (s->limit_seconds > 0) strbuf_printf(out, " %13.0f %%", 100 * s->limit_seconds / s->seconds);
        strbuf_putc(out, '\n');
    }
    strbuf_printf(out, "%-33s %8s %10.3f: %.1f %% of the step's %.3f ms\n", "in all", "", 1e3 * sums->seconds,
                  100 * sums->seconds / step_seconds, 1e3 * step_seconds);
    if (sums->overhead > 0) strbuf_printf(out, "(measuring took %.2f us a launch, taken off)\n", 1e6 * sums->overhead);
}

void op_sums_print_json(const OpSums *sums, StrBuf *out)
{
    strbuf_printf(out, ", \"ops_ms\": %.4f, \"ops\": [", 1e3 * sums->seconds);
    for (int i = 0; i < sums->count; i++) {
        const OpSum *s = &sums->items[i];
        strbuf_printf(
            out,
            "%s{\"op\": \"%s\", \"kernel\": \"%s\", \"launches\": %d, \"ms\": %.4f, \"limit_ms\": %.4f, \"gflop\": %.4f, \"mbytes\": %.4f}",
            i ? ", " : "", s->op, s->kernel, s->launches, 1e3 * s->seconds, 1e3 * s->limit_seconds, s->flops * 1e-9, s->bytes * 1e-6);
    }
    strbuf_puts(out, "]");
}
