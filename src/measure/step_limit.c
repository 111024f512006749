/* See step_limit.h. */
#include "measure/step_limit.h"

#include "ops/ops.h"

#include <math.h>

void step_work_add(StepWork *work, const Feeds *batch, int64_t batch_size, int64_t seq_len)
{
    int64_t pairs = 0;
    for (int64_t i = 0; i < batch_size * seq_len; i++)
        if (batch->doc_id[i] >= 0) pairs += i % seq_len - batch->doc_start[i] + 1;
    work->pairs += (double)pairs;
    work->tokens += batch->num_tokens;
    work->trained += batch->num_trained;
}

/* Flops of a launch, scaled to the rate of `dtype`: products of narrower operands count less, as they take less time. */
static double flops_at(const DeviceFacts *facts, DType dtype, const Launch *launch)
{
    OpCost cost = launch_cost(launch);
    double rate = facts->gemm_flops[dtype], own = facts->gemm_flops[launch_operand_dtype(launch)];
    return cost.matrix_unit && rate > 0 && own > rate ? cost.flops * rate / own : cost.flops;
}

static ProgramWork program_work(const DeviceFacts *facts, DType dtype, const Program *program, double times)
{
    ProgramWork work = {.bytes = program->cost.bytes, .times = times};
    for (int i = 0; i < program->num_launches; i++) {
        const Launch *launch = &program->launches[i];
        double        flops = flops_at(facts, dtype, launch);
        if (launch->node->op->flags & OP_BY_DOCUMENT)
            work.document_flops += flops;
        else if (launch->node->op->flags & OP_BY_LABEL)
            work.label_flops += flops;
        else
            work.flops += flops;
    }
    return work;
}

void step_limit_measure(StepLimit *limit)
{
    double flops;
    if (!limit->is_measured) return;
    limit->is_beaten = false;
    if (device_cpu_measure_peak(limit->device, &flops, NULL) == OK)
        limit->flops_rate = fmax(limit->flops_rate, flops);
    else
        status_clear();
}

void step_limit_init(StepLimit *limit, Device *device, const Plan *plan, DType dtype, int64_t micros)
{
    const DeviceFacts *facts = &plan->facts;
    const ProgramSpec *spec = &plan_micro(plan, 0, micros)->spec;
    *limit = (StepLimit){.device = device, .cells = (double)(micros * spec->batch * spec->seq)};
    limit->pairs = limit->cells * (double)(spec->seq + 1) / 2;
    for (int i = 0; i < plan->num_programs; i++) {
        int64_t times = program_times(plan, &plan->programs[i], micros);
        if (times) limit->program[limit->num_programs++] = program_work(facts, dtype, &plan->programs[i], (double)times);
    }
    limit->is_measured = !(facts->gemm_flops[dtype] > 0 && facts->bandwidth > 0);
    if (limit->is_measured) {
        step_limit_measure(limit);
        return;
    }
    limit->flops_rate = facts->gemm_flops[dtype];
    limit->byte_rate = facts->bandwidth;
}

static double seconds_at_limit(const StepLimit *limit, const StepWork *work)
{
    double document_share = work->pairs / limit->pairs, label_share = (double)work->trained / limit->cells, sum = 0;
    for (int i = 0; i < limit->num_programs; i++) {
        const ProgramWork *p = &limit->program[i];
        double             flops = p->flops + p->document_flops * document_share + p->label_flops * label_share;
        sum += p->times * fmax(flops / limit->flops_rate, limit->byte_rate > 0 ? p->bytes / limit->byte_rate : 0);
    }
    return sum;
}

double step_limit_seconds(StepLimit *limit, const StepWork *work, double seconds)
{
    if (!(limit->flops_rate > 0 && seconds > 0)) return 0;
    double least = seconds_at_limit(limit, work);
    if (least <= seconds || !limit->is_measured) return least;
    limit->flops_rate *= least / seconds;
    limit->is_beaten = true;
    return seconds;
}
