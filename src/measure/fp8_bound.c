/* See fp8_bound.h. */
#include "measure/fp8_bound.h"

#include "passes/precision.h"
#include "passes/operands.h"
#include "run/timeline.h"

/* Seconds by which FP8's rate would shorten the products of a program compiled for bf16. */
static double saved_of(const Plan *plan, const PrecisionOptions *fp8, const Program *program)
{
    double       ratio = plan->facts.gemm_flops[DT_E4M3] / plan->facts.gemm_flops[DT_BF16], seconds = 0;
    RecipeLayers layers;
    Value       *weight;
    layers_find(&layers, program->graph, fp8);
    for (int i = 0; i < program->num_launches; i++) {
        const Launch *launch = &program->launches[i];
        ProductKind   kind = layers_kind(&layers, launch->node, &weight);
        bool          in_fp8 = kind == PRODUCT_Y ? fp8->forward == DT_E4M3 : fp8->backward == DT_E5M2;
        if (kind && in_fp8) seconds += launch_seconds(&plan->facts, launch) * (1 - 1 / ratio);
    }
    return seconds;
}

static Status find_bound(Arena *arena, const Config *config, const HfModel *model, Device *device, double *out_seconds)
{
    Config         bf16 = *config;
    CompileOptions options, fp8;
    Plan          *plan;
    double         all = 0, saved = 0;
    bf16.recipe = OPT_RECIPE_BF16;
    bf16.matmul_dtype = bf16.gradient_dtype = OPT_UNSET;
    TRY(setup_options(arena, config, model, &fp8));
    if (!precision_is_scaled(&fp8.precision)) return OK;
    TRY(setup_options(arena, &bf16, model, &options));
    TRY(compile_plan(arena, model->module, &model->config, model->config_name, &options, device, &plan));
    if (!(plan->facts.gemm_flops[DT_BF16] > 0) || !(plan->facts.gemm_flops[DT_E4M3] > 0)) return OK;
    for (int i = 0; i < plan->num_programs; i++) {
        const Program *program = &plan->programs[i];
        int64_t        times = program_times(plan, program, config->gradient_accumulation_steps);
        all += (double)times * program->simulated_seconds;
        saved += (double)times * saved_of(plan, &fp8.precision, program);
    }
    if (saved > 0) *out_seconds = all - saved;
    return OK;
}

Status fp8_bound(const Config *config, const HfModel *model, Device *device, double *out_seconds)
{
    Arena arena = {0};
    *out_seconds = 0;
    Status status = find_bound(&arena, config, model, device, out_seconds);
    arena_deinit(&arena);
    return status;
}
