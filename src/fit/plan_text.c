/* A plan as a table for people. */
#include "fit/fit.h"

#include "config/options.h"

/* Bytes of the largest matrix that is dequantised for its reader. Only one is live at a time: it dies right after its reader. */
static int64_t made_at_use(const Plan *plan)
{
    int64_t most = 0;
    for (int p = 0; p < plan->num_programs; p++)
        for (const Node *node = plan->programs[p].graph->first; node; node = node->next)
            if (node->flags & NODE_AT_USE && type_bytes(&node->out[0]->type) > most) most = type_bytes(&node->out[0]->type);
    return most;
}

/* A line about the matrices that are kept in another format. */
static void print_base(const Plan *plan, StrBuf *out)
{
    const WeightFormat *format = NULL;
    int64_t             kept = 0, plain = 0;
    int                 count = 0;
    char                texts[4][32];
    Arena               arena = {0};
    for (int i = 0; i < plan->num_params; i++) {
        const Param *param = plan->params[i];
        if (!param->format) continue;
        format = param->format;
        count++;
        plain += type_bytes(&param->type);
        for (int k = 0; k < format->num_parts; k++) {
            const PlanEntry *part = plan_find(plan, weight_part_name(&arena, format, param->name, k));
            kept += part ? part->place.bytes : 0;
        }
    }
    int64_t made = format ? made_at_use(plan) : 0;
    if (format)
        strbuf_printf(out, "base         %d matrices in %s: %s in place of %s", count, format->name, size_text(kept, texts[0]),
                      size_text(plain, texts[1]));
    if (made) strbuf_printf(out, "; at most %s are made again at a time", size_text(made, texts[2]));
    if (format && plan->coded_format == CODED_TILES)
        strbuf_printf(out, "; %s beside them for products in their own format", size_text(plan_coded_bytes(plan), texts[3]));
    if (format) strbuf_puts(out, "\n");
    arena_deinit(&arena);
}

void fit_print_latent(const PlanLatent *latent, const char *label, StrBuf *out)
{
    if (latent->layers)
        strbuf_printf(out, "%s%d layers keep latents in the KV cache: %lld numbers of a token, in place of %lld\n", label, latent->layers,
                      (long long)latent->numbers, (long long)latent->whole_numbers);
    if (latent->whole_layers)
        strbuf_printf(out, "%s%d layers keep keys and values in the KV cache: %lld numbers of a token, in place of a latent's %lld: %s\n",
                      label, latent->whole_layers, (long long)latent->whole_numbers, (long long)latent->numbers, latent->why);
}

void fit_print_plan(const Config *config, const Plan *plan, StrBuf *out)
{
    enum { LEAST_PINNED = 4096 }; /* memory for the results of steps is always pinned */
    char      text[32];
    ConfigKey key;
    int64_t   limit = setup_memory_limit(config, plan, &key);
    strbuf_printf(out, "device       %s\nparameters   %lld, of which %lld are trained\n", plan->facts.name, (long long)plan->total_numel,
                  (long long)plan->trained_numel);
    if (config->adapter) strbuf_printf(out, "adapter      goes on from %s, rank %lld\n", config->adapter, (long long)config->lora_rank);
    print_base(plan, out);
    fit_print_latent(&plan->latent, "latent       ", out);
    if (plan->num_scaled) {
        strbuf_printf(out, "fp8          %d tensors with scales; codes of weights %s", plan->num_scaled,
                      size_text(plan_code_bytes(plan), text));
        strbuf_printf(out, ", scales and their history %s\n", size_text(plan_scale_bytes(plan), text));
    }
    if (plan->coded_format == CODED_FP4)
        strbuf_printf(out, "fp4          %d weights in codes: %s\n", plan->num_coded, size_text(plan_coded_bytes(plan), text));
    strbuf_puts(out, "\nmemory");
    if (plan->world > 1) strbuf_printf(out, " of each of %d ranks", plan->world);
    strbuf_putc(out, '\n');
    for (int i = 0; i < REGION_COUNT; i++)
        if (plan->region_bytes[SPACE_DEVICE][i])
            strbuf_printf(out, "  %-12s %12s\n", region_name((Region)i), size_text(plan->region_bytes[SPACE_DEVICE][i], text));
    strbuf_printf(out, "  %-12s %12s", "in all", size_text(plan_total_bytes(plan), text));
    if (limit) strbuf_printf(out, "   of %s", size_text(limit, text));
    if (key != CONFIG_KEY_COUNT) strbuf_printf(out, " (%s)", options[key].name);
    bool has_reserve = key == KEY_run_gpu_memory || (key == CONFIG_KEY_COUNT && plan->facts.driver_is_apart);
    if (has_reserve) strbuf_printf(out, "; %s is left to driver and libraries", size_text(plan->facts.driver_bytes, text));
    if (plan->facts.driver_bytes)
        strbuf_printf(out, "\n  %-12s %12s   estimated, for context and libraries%s%s", "beside it", size_text(GPU_CONTEXT_BYTES, text),
                      plan->world > 1 ? " but NCCL's buffers" : "", has_reserve ? ", of what is left to them" : "");
    if (plan_host_bytes(plan) > LEAST_PINNED)
        strbuf_printf(out, "\n  %-12s %12s   of the host's memory", "pinned", size_text(plan_host_bytes(plan), text));
    strbuf_puts(out, "\n\nprogram         launches       GFLOP     traffic  activations");
    bool timed = false;
    for (int i = 0; i < plan->num_programs; i++) timed |= plan->programs[i].roofline_seconds > 0;
    strbuf_puts(out, !timed ? "\n" : plan->facts.rates ? "   time at the limit    expected\n" : "   time at the limit    at least\n");
    for (int i = 0; i < plan->num_programs; i++) {
        const Program *p = &plan->programs[i];
        strbuf_printf(out, "  %-13s %8d %11.2f", p->name, p->num_launches, p->cost.flops * 1e-9);
        strbuf_printf(out, " %11s", size_text((int64_t)p->cost.bytes, text));
        strbuf_printf(out, " %12s", size_text(p->activation_bytes, text));
        if (timed) strbuf_printf(out, "       %10.3f ms %8.3f ms", p->roofline_seconds * 1e3, p->simulated_seconds * 1e3);
        strbuf_putc(out, '\n');
    }
    if (timed)
        strbuf_puts(out, plan->facts.rates ? "expected times: rates measured on this GPU\n"
                                           : "times are bounds, of data-sheet rates: nothing was measured on this GPU\n");
}
