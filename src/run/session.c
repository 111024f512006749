/* See session.h. Allocates the plan's regions, binds every launch to memory, replays programs. */
#include "run/session.h"

#include "ops/ops.h"

#include <stdlib.h>
#include <string.h>

/* Values begin at multiples of GATHER_ALIGN; bytes between two values belong to none. */
enum { GATHER_BYTES = 1 << 16, GATHER_ALIGN = 256 };

/* Where a program reads a feed; bytes 0: the program doesn't read the feed. */
typedef struct Slot {
    void  *to;
    size_t bytes;
} Slot;

struct Session {
    Plan   *plan;
    Device *device;
    void   *region[SPACE_COUNT][REGION_COUNT];
    int64_t allocated_bytes;
    Slot (*feeds)[FEED_MOST]; /* by program; the last row: the feeds of shape FEED_NUMBERS that any program reads */
    char *together;           /* (GATHER_BYTES) feeds that are uploaded together */
};

static void *address(const Session *s, const Placement *place)
{
    return (char *)s->region[place->space][place->region] + place->offset;
}

static void bind_launches(Session *s, const Program *program, Launch *launches, int count)
{
    for (int n = 0; n < count; n++) {
        const Node *node = launches[n].node;
        TensorView *in = (TensorView *)launches[n].args.in; /* changing it is allowed: launches aren't bound yet */
        for (int i = 0; i < node->num_in; i++)
            if (node->in[i]) in[i].data = address(s, &program->placement[node->in[i]->id]);
        for (int k = 0; k < node->num_out; k++)
            if (node->out[k]) launches[n].args.out[k].data = address(s, &program->placement[node->out[k]->id]);
        bool   own = program->scratch[node->id] >= 0;
        Region region = own ? REGION_ACTIVATIONS : REGION_WORKSPACE;
        launches[n].args.workspace =
            (char *)s->region[SPACE_DEVICE][region] + (own ? program->scratch[node->id] : s->plan->workspace_offset[launches[n].stream]);
    }
}

static const char *feed_name(const Plan *plan, int index)
{
    return index < FEED_COUNT ? feed_info((Feed)index)->name : plan->own_feeds[index - FEED_COUNT];
}

/* Finds by name, once, where each program reads its feeds. */
static void bind_feeds(Session *s)
{
    s->together = calloc_or_end(1, GATHER_BYTES);
    s->feeds = calloc_or_end((size_t)s->plan->num_programs + 1, sizeof *s->feeds);
    Slot *any = s->feeds[s->plan->num_programs];
    for (int p = 0; p < s->plan->num_programs; p++) {
        const Program *program = &s->plan->programs[p];
        for (int i = 0; i < FEED_MOST; i++) {
            const char  *name = feed_name(s->plan, i);
            const Value *value = name ? graph_find(program->graph, name) : NULL;
            if (!value || value->kind != VALUE_INPUT || !value->first_use) continue;
            s->feeds[p][i] = (Slot){address(s, &program->placement[value->id]), (size_t)type_bytes(&value->type)};
            if (i < FEED_COUNT && feed_info((Feed)i)->shape == FEED_NUMBERS) any[i] = s->feeds[p][i];
        }
    }
}

/* The given feed with the lowest address, `from` or above; NULL: there is none. */
static const Slot *next_slot(const Slot *slots, const Feeds *feeds, const char *from)
{
    const Slot *next = NULL;
    for (int i = 0; i < FEED_MOST; i++)
        if (slots[i].bytes && feeds->array[i] && (char *)slots[i].to >= from && (!next || slots[i].to < next->to)) next = &slots[i];
    return next;
}

/* Adjacent feeds (apart from alignment) are uploaded together: a decoding step has many small ones. */
Status session_feed(Session *s, const Program *program, const Feeds *feeds)
{
    const Slot *slots = s->feeds[program ? program - s->plan->programs : s->plan->num_programs];
    const Slot *slot = next_slot(slots, feeds, NULL);
    while (slot) {
        char  *begin = slot->to, *end = begin;
        size_t bytes = slot->bytes;
        if (bytes > GATHER_BYTES) {
            TRY(s->device->api->upload(s->device, begin, feeds->array[slot - slots], bytes));
            slot = next_slot(slots, feeds, begin + bytes);
            continue;
        }
        while (slot && (char *)slot->to - end < GATHER_ALIGN && (char *)slot->to + slot->bytes - begin <= GATHER_BYTES) {
            memcpy(s->together + ((char *)slot->to - begin), feeds->array[slot - slots], slot->bytes);
            end = (char *)slot->to + slot->bytes;
            slot = next_slot(slots, feeds, end);
        }
        TRY(s->device->api->upload(s->device, begin, s->together, (size_t)(end - begin)));
    }
    return OK;
}

static Status allocate_region(Session *s, Space space, Region region)
{
    int64_t bytes = s->plan->region_bytes[space][region];
    if (!bytes) return OK;
    Status status = s->device->api->alloc(s->device, space, (size_t)bytes, &s->region[space][region]);
    if (status != OK)
        return status_prefix(status, "%s%s: %.2f GiB of %.2f GiB in all", region_name(region),
                             space == SPACE_HOST ? ", pinned on the host" : "", (double)bytes / (1 << 30),
                             (double)(space == SPACE_HOST ? plan_host_bytes(s->plan) : plan_total_bytes(s->plan)) / (1 << 30));
    if (space == SPACE_DEVICE) s->allocated_bytes += bytes;
    return OK;
}

static Status allocate(Session *s)
{
    for (int space = 0; space < SPACE_COUNT; space++)
        for (int region = 0; region < REGION_COUNT; region++) TRY(allocate_region(s, (Space)space, (Region)region));
    return OK;
}

static Status upload_consts(Session *s, const Program *program)
{
    for (int i = 0; i < program->graph->num_values; i++) {
        const Value *value = program->graph->values[i];
        if (value->const_data)
            TRY(s->device->api->upload(s->device, address(s, &program->placement[i]), value->const_data, (size_t)type_bytes(&value->type)));
    }
    return OK;
}

Status session_create(Plan *plan, Device *device, Session **out_session)
{
    Session *s = calloc_or_end(1, sizeof *s);
    s->plan = plan;
    s->device = device;
    Status status = allocate(s);
    for (int i = 0; i < plan->num_programs && status == OK; i++) {
        Program *program = &plan->programs[i];
        bind_launches(s, program, program->once, program->num_once);
        bind_launches(s, program, program->launches, program->num_launches);
        status = upload_consts(s, program);
        if (status == OK && program->num_once) status = device->api->run(device, program->once, program->num_once, NULL);
        if (status == OK) status = device->api->sync(device);
        if (status == OK && program->spec.entry->source == ENTRY_OF_WEIGHTS) continue; /* session_load runs only parts of the program */
        if (status == OK) status = device->api->prepare(device, program->launches, program->num_launches, &program->replay);
    }
    if (status == OK) bind_feeds(s);
    if (status != OK) {
        session_destroy(s);
        return status;
    }
    *out_session = s;
    return OK;
}

void session_destroy(Session *s)
{
    if (!s) return;
    for (int i = 0; i < s->plan->num_programs; i++) {
        Program *program = &s->plan->programs[i];
        if (program->replay) s->device->api->release(s->device, program->replay);
        program->replay = NULL;
    }
    for (int space = 0; space < SPACE_COUNT; space++)
        for (int region = 0; region < REGION_COUNT; region++)
            if (s->region[space][region]) s->device->api->free(s->device, (Space)space, s->region[space][region]);
    free(s->feeds);
    free(s->together);
    free(s);
}

static Status find_range(const Session *s, const char *name, size_t offset, size_t bytes, void **out)
{
    const PlanEntry *entry = plan_find(s->plan, name);
    FAIL_IF(!entry, ERR_NOT_FOUND, "this session has no value named %s", name);
    FAIL_IF(offset > (size_t)entry->place.bytes || bytes > (size_t)entry->place.bytes - offset, ERR_INTERNAL,
            "%s: bytes %zu to %zu of %lld", name, offset, offset + bytes, (long long)entry->place.bytes);
    *out = (char *)address(s, &entry->place) + offset;
    return OK;
}

Status session_write_range(Session *s, const char *name, size_t offset, const void *data, size_t bytes)
{
    void *to;
    TRY(find_range(s, name, offset, bytes, &to));
    return s->device->api->upload(s->device, to, data, bytes);
}

Status session_read_range(Session *s, const char *name, size_t offset, void *data, size_t bytes)
{
    void *from;
    TRY(find_range(s, name, offset, bytes, &from));
    return s->device->api->download(s->device, data, from, bytes);
}

Status session_take(Session *s, const char *name, const void *data, size_t bytes)
{
    void *to;
    TRY(find_range(s, name, 0, bytes, &to));
    return s->device->api->take(s->device, to, data, bytes);
}

Status session_write(Session *s, const char *name, const void *data, size_t bytes)
{
    return session_write_range(s, name, 0, data, bytes);
}

Status session_read(Session *s, const char *name, void *data, size_t bytes)
{
    return session_read_range(s, name, 0, data, bytes);
}

/* ---- loading ---- */

/* Whether the host can access memory of this space directly. */
static bool is_shared(const Session *s, Space space)
{
    return space == SPACE_HOST || device_is(s->device, "cpu");
}

/* Writes an arrival's elements to its staged value. *scratch: reallocated to LOAD_NUMEL floats, or to 4 rows if those are more. */
static Status stage(Session *s, const Arrival *arrival, const Placement *place, const LoadSource *source, float **scratch)
{
    enum { LOAD_NUMEL = 1 << 20 };
    const TensorType *type = &arrival->staged->type;
    int64_t           numel = type_numel(type), cols = numel / type->dim[0], rows = LOAD_NUMEL / cols / 4 * 4;
    if (is_shared(s, place->space)) return source->values(source->context, arrival->param, arrival->first, numel, address(s, place));
    int64_t most = (rows ? rows : 4) * cols;
    *scratch = realloc_or_end(*scratch, (size_t)most * sizeof **scratch);
    for (int64_t at = 0; at < numel; at += most) {
        int64_t count = numel - at < most ? numel - at : most;
        TRY(source->values(source->context, arrival->param, arrival->first + at, count, *scratch));
        TRY(s->device->api->upload(s->device, (float *)address(s, place) + at, *scratch, (size_t)count * sizeof **scratch));
    }
    return OK;
}

/* The output that keeps a piece, if the piece is only cast and may arrive in the output's dtype; NULL: launches need it as floats. */
static const TensorView *plain_result(const Arrival *arrival, const Launch *launches, int count)
{
    bool plain = count == 1 && launches->node->op == &op_cast && launches->node->in[0] == arrival->staged &&
                 launches->args.out[0].type.dtype == arrival->param->type.dtype;
    return plain ? &launches->args.out[0] : NULL;
}

/* Uploads the outputs of the parameter's first launch, which the source has already, and runs the other launches, which read them. */
static Status load_parts(Session *s, const Param *param, const Launch *launch, int count, const LoadSource *source)
{
    for (int k = 0; k < launch->node->num_out; k++) {
        const TensorView *out = &launch->args.out[k];
        if (!out->data) continue;
        TRY(s->device->api->upload(s->device, out->data, source->part(source->context, param, k), (size_t)type_bytes(&out->type)));
    }
    return count > 1 ? s->device->api->run(s->device, launch + 1, count - 1, NULL) : OK;
}

static Status load_piece(Session *s, const Arrival *arrival, const Launch *launches, int count, const LoadSource *source, float **scratch)
{
    const Program *program = plan_program(s->plan, &entry_load);
    const Param   *param = arrival->param;
    if (param->format && source->part && source->part(source->context, param, 0)) return load_parts(s, param, launches, count, source);
    const TensorView *result = source->stored ? plain_result(arrival, launches, count) : NULL;
    const void       *stored = result ? source->stored(source->context, param, arrival->first, type_numel(&result->type)) : NULL;
    if (stored) return s->device->api->upload(s->device, result->data, stored, (size_t)type_bytes(&result->type));
    TRY(stage(s, arrival, &program->placement[arrival->staged->id], source, scratch));
    return s->device->api->run(s->device, launches, count, NULL);
}

static bool reads(const Launch *launch, const Value *value)
{
    for (int i = 0; i < launch->node->num_in; i++)
        if (launch->node->in[i] && value_root(launch->node->in[i], NULL) == value) return true;
    return false;
}

static bool is_filled(const Param *param, bool adapters, const LoadSource *source)
{
    if (!param_is_of(param, source->ns)) return false;
    if (param->is_whole) return !adapters || !source->begins;
    return param->is_adapter == adapters;
}

Status session_load(Session *s, bool adapters, const LoadSource *source)
{
    const Plan    *plan = s->plan;
    const Program *program = plan_program(plan, &entry_load);
    float         *scratch = NULL;
    Status         status = OK;
    int            begin = 0, end;
    for (int i = 0; i < plan->num_arrivals && status == OK; i++, begin = end) {
        const Arrival *arrival = &plan->arrivals[i];
        const Value   *next = i + 1 < plan->num_arrivals ? plan->arrivals[i + 1].staged : NULL;
        for (end = begin; end < program->num_launches && !(next && reads(&program->launches[end], next));) end++;
        if (!is_filled(arrival->param, adapters, source)) continue;
        if ((!i || plan->arrivals[i - 1].param != arrival->param) && source->begin) status = source->begin(source->context, arrival->param);
        if (status == OK) status = load_piece(s, arrival, program->launches + begin, end - begin, source, &scratch);
    }
    free(scratch);
    return status;
}

/* ---- runs ---- */

Status session_run(Session *s, const Program *program)
{
    FAIL_IF(!program, ERR_INTERNAL, "a run of a program that this session doesn't have");
    return s->device->api->run(s->device, program->launches, program->num_launches, program->replay);
}

Status session_sync(Session *s)
{
    return s->device->api->sync(s->device);
}

static int mark_of(int64_t number, bool end)
{
    return (int)(2 * number % DEVICE_STEP_MARKS) + end;
}

Status session_begin_step(Session *s, int64_t number)
{
    return s->device->api->mark(s->device, mark_of(number, false));
}

Status session_end_step(Session *s, int64_t number)
{
    return s->device->api->mark(s->device, mark_of(number, true));
}

Status session_await_step(Session *s, int64_t number, double *out_seconds)
{
    TRY(s->device->api->await(s->device, mark_of(number, true)));
    return s->device->api->seconds_between(s->device, mark_of(number, false), mark_of(number, true), out_seconds);
}

Status session_mark_run(Session *s, int64_t number)
{
    return s->device->api->mark(s->device, DEVICE_STEP_MARKS + (int)(number % DEVICE_RUN_MARKS));
}

Status session_await_run(Session *s, int64_t number)
{
    return s->device->api->await(s->device, DEVICE_STEP_MARKS + (int)(number % DEVICE_RUN_MARKS));
}

Status session_idle_before(Session *s, int64_t number, double *out_seconds)
{
    return s->device->api->seconds_between(s->device, mark_of(number - 1, true), mark_of(number, false), out_seconds);
}

Status session_output(Session *s, const Program *program, const char *name, void *data, size_t bytes)
{
    const Value *value = program ? graph_output(program->graph, name) : NULL;
    FAIL_IF(!value, ERR_NOT_FOUND, "%s has no output %s", program ? program->name : "a program that this session doesn't have", name);
    FAIL_IF(bytes > (size_t)type_bytes(&value->type), ERR_INTERNAL, "output %s: %zu bytes of %lld", name, bytes,
            (long long)type_bytes(&value->type));
    return s->device->api->download(s->device, data, address(s, &program->placement[value->id]), bytes);
}

void *session_pointer(Session *s, const char *name)
{
    const PlanEntry *entry = plan_find(s->plan, name);
    return entry && is_shared(s, entry->place.space) ? address(s, &entry->place) : NULL;
}

const Plan *session_plan(const Session *s)
{
    return s->plan;
}

Device *session_device(Session *s)
{
    return s->device;
}

int64_t session_allocated_bytes(const Session *s)
{
    return s->allocated_bytes;
}

Status session_beside_bytes(Session *s, int64_t *out_bytes)
{
    DeviceFacts facts;
    TRY(s->device->api->facts(s->device, &facts));
    *out_bytes = facts.taken_bytes > s->allocated_bytes ? facts.taken_bytes - s->allocated_bytes : 0;
    return OK;
}
