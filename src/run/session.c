/* Allocates the plan's regions, binds every launch to memory, replays. */
#include "run/session.h"

#include <stdlib.h>
#include <string.h>

struct Session {
    Plan   *plan;
    Device *device;
    void   *region[SPACE_COUNT][REGION_COUNT];
    int64_t allocated_bytes;
};

static void *address(const Session *s, const Placement *place)
{
    return (char *)s->region[place->space][place->region] + place->offset;
}

static void bind_launches(Session *s, const Program *program, Launch *launches, int count)
{
    for (int n = 0; n < count; n++) {
        const Node *node = launches[n].node;
        TensorView *in = (TensorView *)launches[n].args.in; /* ours until bound */
        for (int i = 0; i < node->num_in; i++)
            if (node->in[i]) in[i].data = address(s, &program->placement[node->in[i]->id]);
        for (int k = 0; k < node->num_out; k++)
            if (node->out[k]) launches[n].args.out[k].data = address(s, &program->placement[node->out[k]->id]);
        launches[n].args.workspace = (char *)s->region[SPACE_DEVICE][REGION_WORKSPACE] + s->plan->workspace_offset[launches[n].stream];
    }
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
    Session *s = calloc(1, sizeof *s);
    if (!s) fatal_out_of_memory(sizeof *s);
    s->plan = plan;
    s->device = device;
    Status status = allocate(s);
    for (int kind = 0; kind < PROGRAM_KIND_COUNT && status == OK; kind++) {
        Program *program = &plan->program[kind];
        if (!program->graph) continue;
        bind_launches(s, program, program->once, program->num_once);
        bind_launches(s, program, program->launches, program->num_launches);
        status = upload_consts(s, program);
        if (status == OK && program->num_once) status = device->api->run(device, program->once, program->num_once, NULL);
        if (status == OK) status = device->api->sync(device);
        if (status == OK) status = device->api->prepare(device, program->launches, program->num_launches, &program->replay);
    }
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
    for (int kind = 0; kind < PROGRAM_KIND_COUNT; kind++) {
        Program *program = &s->plan->program[kind];
        if (program->replay) s->device->api->release(s->device, program->replay);
        program->replay = NULL;
    }
    for (int space = 0; space < SPACE_COUNT; space++)
        for (int region = 0; region < REGION_COUNT; region++)
            if (s->region[space][region]) s->device->api->free(s->device, (Space)space, s->region[space][region]);
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

Status session_write(Session *s, const char *name, const void *data, size_t bytes)
{
    return session_write_range(s, name, 0, data, bytes);
}

Status session_read(Session *s, const char *name, void *data, size_t bytes)
{
    return session_read_range(s, name, 0, data, bytes);
}

Status session_run(Session *s, ProgramKind kind)
{
    Program *program = &s->plan->program[kind];
    FAIL_IF(!program->graph, ERR_INTERNAL, "this session has no program %s", program_kind_name(kind));
    return s->device->api->run(s->device, program->launches, program->num_launches, program->replay);
}

Status session_sync(Session *s)
{
    return s->device->api->sync(s->device);
}

static int mark_of(int64_t number, bool end)
{
    return (int)(2 * number % DEVICE_MARKS) + end;
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

Status session_output(Session *s, ProgramKind kind, const char *name, void *data, size_t bytes)
{
    const Program *program = &s->plan->program[kind];
    const Value   *value = program->graph ? graph_output(program->graph, name) : NULL;
    FAIL_IF(!value, ERR_NOT_FOUND, "program %s has no output %s", program_kind_name(kind), name);
    FAIL_IF(bytes > (size_t)type_bytes(&value->type), ERR_INTERNAL, "output %s: %zu bytes of %lld", name, bytes,
            (long long)type_bytes(&value->type));
    return s->device->api->download(s->device, data, address(s, &program->placement[value->id]), bytes);
}

void *session_pointer(Session *s, const char *name)
{
    const PlanEntry *entry = plan_find(s->plan, name);
    bool             seen = entry && (entry->place.space == SPACE_HOST || strcmp(s->device->api->name, "cpu") == 0);
    return seen ? address(s, &entry->place) : NULL;
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
