/* The names of a plan's parts, its table of lasting values, the cost of its launches, its JSON. */
#include "run/program.h"

#include "base/hash.h"
#include "base/json.h"
#include "base/strbuf.h"
#include "ops/attrs.h"

#include <math.h>
#include <string.h>

const char *region_name(Region region)
{
    static const char *const names[REGION_COUNT] = {"weights", "grads", "optimizer",   "consts",
                                                    "inputs",  "cache", "activations", "workspace"};
    return names[region];
}

bool program_alike(const ProgramSpec *a, const ProgramSpec *b)
{
    return a->entry == b->entry && a->adds == b->adds && a->ends == b->ends;
}

const char *program_spec_name(const ProgramSpec *spec)
{
    static const char *const places[2][2] = {{"micro_first", "micro_only"}, {"micro_next", "micro_last"}};
    return entry_makes_steps(spec->entry) ? places[spec->adds][spec->ends] : spec->entry->name;
}

int program_specs(ProgramSpec out[MOST_SPECS])
{
    int count = 0;
    for (int i = 0; i < ENTRY_COUNT; i++) {
        const Entry *entry = entry_at(i);
        int          places = entry_makes_steps(entry) ? 4 : 1;
        for (int k = 0; k < places; k++) out[count++] = (ProgramSpec){.entry = entry, .adds = k == 1 || k == 3, .ends = k > 1};
    }
    return count;
}

Status program_find(const char *name, ProgramSpec *out)
{
    ProgramSpec specs[MOST_SPECS];
    const char *names[MOST_SPECS];
    int         count = program_specs(specs), index;
    for (int i = 0; i < count; i++) names[i] = program_spec_name(&specs[i]);
    TRY(find_name("program", name, names, (size_t)count, &index));
    specs[index].batch = out->batch;
    specs[index].seq = out->seq;
    *out = specs[index];
    return OK;
}

ProgramSpec program_micro(int64_t micro, int64_t count, int world)
{
    return (ProgramSpec){.entry = &entry_micro, .adds = micro > 0, .ends = world > 1 && micro == count - 1};
}

const Program *plan_program(const Plan *plan, const Entry *entry)
{
    for (int i = 0; i < plan->num_programs; i++)
        if (plan->programs[i].spec.entry == entry) return &plan->programs[i];
    return NULL;
}

const Program *plan_program_like(const Plan *plan, const ProgramSpec *spec)
{
    for (int i = 0; i < plan->num_programs; i++)
        if (program_alike(&plan->programs[i].spec, spec)) return &plan->programs[i];
    return NULL;
}

const Program *plan_program_of(const Plan *plan, const Entry *entry, int64_t batch, int64_t seq)
{
    for (int i = 0; i < plan->num_programs; i++) {
        const ProgramSpec *spec = &plan->programs[i].spec;
        if (spec->entry == entry && spec->batch == batch && spec->seq == seq) return &plan->programs[i];
    }
    return NULL;
}

const Program *plan_micro(const Plan *plan, int64_t micro, int64_t count)
{
    const ProgramSpec spec = program_micro(micro, count, plan->world);
    return plan_program_like(plan, &spec);
}

int64_t program_times(const Plan *plan, const Program *program, int64_t micros)
{
    const ProgramSpec *spec = &program->spec;
    if (!entry_makes_steps(spec->entry)) return spec->entry->source == ENTRY_OF_UPDATE;
    bool    has_last = plan->world > 1; /* the last micro-step is a program of its own */
    int64_t adding = micros - 1;        /* micro-steps after the first */
    if (spec->ends) return spec->adds ? adding > 0 : adding == 0;
    return spec->adds ? adding - (has_last && adding > 0) : !(has_last && adding == 0);
}

static int *entry_slot(const Plan *plan, const char *name)
{
    uint32_t mask = (uint32_t)plan->entry_table_size - 1, i = (uint32_t)hash_bytes(name, strlen(name), 0) & mask;
    while (plan->entry_table[i] && strcmp(plan->entries[plan->entry_table[i] - 1].name, name) != 0) i = (i + 1) & mask;
    return &plan->entry_table[i];
}

const PlanEntry *plan_find(const Plan *plan, const char *name)
{
    if (!plan->entry_table_size) return NULL;
    int index = *entry_slot(plan, name);
    return index ? &plan->entries[index - 1] : NULL;
}

bool program_reads(const Program *program, const char *name)
{
    const Value *value = program->graph ? graph_find(program->graph, name) : NULL;
    return value && value->kind == VALUE_INPUT && value->first_use;
}

TensorType state_type(const BucketState *state, const Param *param)
{
    TensorType type = param->type;
    int64_t    numel = type_numel(&type);
    type.dtype = state->dtype;
    if (state->extent == STATE_ROWS && type.ndim > 1) type.dim[--type.ndim] = 0;
    if (state->extent == STATE_BLOCKS) type = type_make(state->dtype, 1, (numel + MOMENT_BLOCK - 1) / MOMENT_BLOCK);
    return type;
}

PlanPiece plan_owned(const Plan *plan, const Bucket *bucket, int index)
{
    return plan->shares[bucket->first + index];
}

PlanPiece plan_owned_state(const Plan *plan, const Bucket *bucket, int index, const BucketState *state)
{
    const Param   *param = plan->trained_params[bucket->first + index];
    const int64_t *segment = plan->segments[bucket->first + index];
    int64_t        each = state->extent == STATE_BLOCKS ? MOMENT_BLOCK : state->extent == STATE_ROWS ? type_cols(&param->type) : 1;
    if (state->extent == STATE_ROWS && param->type.ndim == 1) each = 1;
    return (PlanPiece){state->value, segment[SEGMENT_FIRST] / each, (segment[SEGMENT_NUMEL] + each - 1) / each, state->at[index]};
}

PlanPiece plan_held(const Plan *plan, const char *name)
{
    const PlanEntry *entry = plan_find(plan, name);
    return entry ? (PlanPiece){name, entry->first, type_numel(&entry->type), 0} : (PlanPiece){0};
}

const Bucket *plan_bucket(const Plan *plan, const Param *param, int *out_index)
{
    const PlanEntry *entry = param->trained ? plan_find(plan, param->name) : NULL;
    int              i = 0;
    if (!entry) return NULL;
    while (entry->trained > plan->buckets[i].first + plan->buckets[i].count) i++;
    *out_index = entry->trained - 1 - plan->buckets[i].first;
    return &plan->buckets[i];
}

const PlanEntry *plan_master(const Plan *plan, const Param *param, int64_t *out_at)
{
    int           index;
    const Bucket *bucket = plan_bucket(plan, param, &index);
    for (int k = 0; bucket && k < bucket->num_states; k++) {
        if (!bucket->states[k].is_copy) continue;
        *out_at = plan_owned_state(plan, bucket, index, &bucket->states[k]).at;
        return plan_find(plan, bucket->states[k].value);
    }
    return NULL;
}

static void grow(Plan *plan)
{
    int        bigger = plan->cap_entries ? 2 * plan->cap_entries : 256;
    PlanEntry *entries = arena_array(plan->arena, PlanEntry, bigger);
    if (plan->num_entries) memcpy(entries, plan->entries, sizeof(PlanEntry) * (size_t)plan->num_entries);
    plan->entries = entries;
    plan->cap_entries = bigger;
    plan->entry_table_size = 2 * bigger;
    plan->entry_table = arena_array(plan->arena, int, plan->entry_table_size);
    for (int i = 0; i < plan->num_entries; i++) *entry_slot(plan, entries[i].name) = i + 1;
}

PlanEntry *plan_add(Plan *plan, const char *name, const TensorType *type, Region region, Space space, int64_t offset)
{
    if (plan->num_entries == plan->cap_entries) grow(plan);
    PlanEntry *entry = &plan->entries[plan->num_entries++];
    *entry = (PlanEntry){name, *type, {region, space, offset, type_bytes(type)}, 0, 0};
    *entry_slot(plan, name) = plan->num_entries;
    return entry;
}

uint64_t plan_collectives(const Plan *plan)
{
    uint64_t hash = 0;
    for (int p = 0; p < plan->num_programs; p++) {
        const Program *program = &plan->programs[p];
        hash = hash_bytes(program->name, strlen(program->name) + 1, hash);
        for (int i = 0; i < program->num_launches; i++) {
            const Node *node = program->launches[i].node;
            if (!(node->op->flags & OP_COLLECTIVE)) continue;
            char text[64];
            type_text(&node->in[0]->type, text);
            hash = hash_bytes(node->op->name, strlen(node->op->name) + 1, hash);
            hash = hash_bytes(text, strlen(text) + 1, hash);
        }
    }
    return hash;
}

static int64_t space_bytes(const Plan *plan, Space space)
{
    int64_t total = 0;
    for (int i = 0; i < REGION_COUNT; i++) total += plan->region_bytes[space][i];
    return total;
}

int64_t plan_total_bytes(const Plan *plan)
{
    return space_bytes(plan, SPACE_DEVICE);
}

int64_t plan_host_bytes(const Plan *plan)
{
    return space_bytes(plan, SPACE_HOST);
}

static int64_t entry_bytes(const Plan *plan, const char *name)
{
    const PlanEntry *entry = name ? plan_find(plan, name) : NULL;
    return entry ? entry->place.bytes : 0;
}

int64_t plan_code_bytes(const Plan *plan)
{
    int64_t bytes = 0;
    for (int i = 0; i < plan->num_scaled; i++)
        bytes += entry_bytes(plan, plan->scaled[i].codes) + entry_bytes(plan, plan->scaled[i].transposed);
    return bytes;
}

int64_t plan_coded_bytes(const Plan *plan)
{
    int64_t bytes = 0;
    for (int i = 0; i < plan->num_coded; i++)
        for (int part = 0; part < MADE_COUNT; part++) bytes += entry_bytes(plan, plan->coded[i].made[part]);
    return bytes;
}

int64_t plan_scale_bytes(const Plan *plan)
{
    return entry_bytes(plan, PRECISION_SCALES) + entry_bytes(plan, PRECISION_NOW) + entry_bytes(plan, PRECISION_HISTORY);
}

OpCost launch_cost(const Launch *launch)
{
    const Node *node = launch->node;
    return node->op->cost ? node->op->cost(node) : (OpCost){0};
}

static bool is_added_to(const Node *node, int k)
{
    for (int i = 0; i < node->op->num_alias; i++)
        if (node->op->alias[i].in == k) return true;
    return false;
}

DType launch_operand_dtype(const Launch *launch)
{
    const Node    *node = launch->node;
    const DTypeSet formats = DT_SET_DECODE | DT_SET_FP8 | DT_SET(DT_E2M1);
    int64_t        largest = 0;
    DType          dtype = DT_F32;
    for (int i = 0; i < node->num_in; i++) {
        const TensorType *type = node->in[i] ? &node->in[i]->type : NULL;
        if (!type || !(DT_SET(type->dtype) & formats) || type_numel(type) <= largest || is_added_to(node, i)) continue;
        largest = type_numel(type);
        dtype = type->dtype;
    }
    return dtype;
}

static double host_bytes(Value *const *values, int count)
{
    double bytes = 0;
    for (int i = 0; i < count; i++)
        if (values[i] && value_root(values[i], NULL)->space == SPACE_HOST) bytes += (double)type_bytes(&values[i]->type);
    return bytes;
}

double launch_link_seconds(const DeviceFacts *facts, const Launch *launch)
{
    const Node *node = launch->node;
    OpCost      cost = launch_cost(launch);
    double      most = node->op->cost ? cost.bytes : INFINITY; /* at most the op's cost: it may read only a few rows of a table */
    double      in = facts->link_in > 0 ? fmin(most, host_bytes(node->in, node->num_in)) / facts->link_in : 0;
    double      out = facts->link_out > 0 ? fmin(most, host_bytes(node->out, node->num_out)) / facts->link_out : 0;
    double      peers = facts->peer_link > 0 && cost.peer_bytes > 0 ? facts->peer_seconds + cost.peer_bytes / facts->peer_link : 0;
    return fmax(fmax(in, out), peers);
}

int64_t link_bytes_at(const DeviceFacts *facts, int world, double part)
{
    double crossing = part / (1 - part) * facts->peer_seconds * facts->peer_link;
    return world > 1 ? (int64_t)(crossing * world / (world - 1)) : 0;
}

double launch_limit_seconds(const DeviceFacts *facts, const Launch *launch, double document_share)
{
    const Node *node = launch->node;
    OpCost      cost = launch_cost(launch);
    double      rate = cost.matrix_unit ? facts->gemm_flops[launch_operand_dtype(launch)] : facts->vector_flops;
    double      flops = node->op->flags & OP_BY_DOCUMENT ? cost.flops * document_share : cost.flops;
    double      compute = rate > 0 ? flops / rate : 0, memory = facts->bandwidth > 0 ? cost.bytes / facts->bandwidth : 0;
    return fmax(fmax(compute, memory), launch_link_seconds(facts, launch)) + facts->launch_seconds;
}

void plan_write_json(const Plan *plan, StrBuf *out)
{
    strbuf_puts(out, "{\"device\": ");
    json_write_string(out, plan->facts.name, strlen(plan->facts.name));
    strbuf_printf(out, ", \"parameters\": %lld, \"trained_parameters\": %lld, \"total_bytes\": %lld, \"regions\": {",
                  (long long)plan->total_numel, (long long)plan->trained_numel, (long long)plan_total_bytes(plan));
    for (int i = 0; i < REGION_COUNT; i++)
        strbuf_printf(out, "%s\"%s\": %lld", i ? ", " : "", region_name((Region)i), (long long)plan->region_bytes[SPACE_DEVICE][i]);
    strbuf_printf(out, "}, \"pinned_bytes\": %lld, ", (long long)plan_host_bytes(plan));
    if (plan->facts.driver_bytes) strbuf_printf(out, "\"estimated_context_bytes\": %d, ", GPU_CONTEXT_BYTES);
    if (plan->num_scaled)
        strbuf_printf(out, "\"fp8\": {\"tensors\": %d, \"code_bytes\": %lld, \"scale_bytes\": %lld}, ", plan->num_scaled,
                      (long long)plan_code_bytes(plan), (long long)plan_scale_bytes(plan));
    if (plan->coded_format == CODED_FP4)
        strbuf_printf(out, "\"fp4\": {\"weights\": %d, \"code_bytes\": %lld}, ", plan->num_coded, (long long)plan_coded_bytes(plan));
    if (plan->facts.bandwidth > 0) strbuf_printf(out, "\"rates_measured\": %s, ", plan->facts.rates ? "true" : "false");
    strbuf_puts(out, "\"programs\": {");
    for (int i = 0; i < plan->num_programs; i++) {
        const Program *p = &plan->programs[i];
        strbuf_printf(out, "%s\"%s\": {\"launches\": %d, \"activation_bytes\": %lld, \"live_bytes\": %lld, \"flops\": ", i ? ", " : "",
                      p->name, p->num_launches, (long long)p->activation_bytes, (long long)p->live_bytes);
        json_write_double(out, p->cost.flops);
        strbuf_puts(out, ", \"bytes\": ");
        json_write_double(out, p->cost.bytes);
        strbuf_puts(out, ", \"roofline_seconds\": ");
        json_write_double(out, p->roofline_seconds);
        strbuf_puts(out, ", \"simulated_seconds\": ");
        json_write_double(out, p->simulated_seconds);
        strbuf_putc(out, '}');
    }
    strbuf_puts(out, "}}");
}
