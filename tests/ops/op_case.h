/* One node with memory of its own, for tests of ops: any kernel of the CPU. */
#pragma once

#include "base/pool.h"
#include "ops/case.h"
#include "ops/draw.h"
#include "ops/infer.h"
#include "test.h"

/* Fills the inputs: floats normally distributed, integers of input k in [0, int_range[k]). */
__attribute__((unused)) static void op_case_fill(OpCase *c, uint64_t seed, const int *int_range)
{
    for (int k = 0; k < c->node->num_in; k++)
        if (c->node->in[k]) op_draw(c->node, k, int_range[k], seed * 64 + (uint64_t)k, c->in[k].data);
}

/* Runs the kernel on `threads` threads and leaves the outputs in c->out. A write outside the outputs or a changed input fails the test. */
__attribute__((unused)) static Status op_case_run(OpCase *c, const CpuKernel *kernel, int threads, const char *what)
{
    const OpDef *op = c->node->op;
    OpRun        run = {.want = ~0u, .kernel = {.run = kernel->run, .name = kernel->name}};
    StrBuf       faults = {0};
    run.kernel.workspace_bytes = op->workspace ? op->workspace(c->node, threads) : 0;
    TRY(device_cpu_create(threads, &run.device));
    Status status = op_run(c, &run, &faults);
    if (faults.len) test_fail(__FILE__, __LINE__, "%s: %s", what, strbuf_cstr(&faults) + 2);
    run.device->api->destroy(run.device);
    strbuf_deinit(&faults);
    return status;
}
