/* Runs a graph's text as a session of one program, on the device of family.h. */
#pragma once

#include "family.h"
#include "passes/layout.h"
#include "passes/pass.h"

typedef struct Run {
    Arena    arena;
    Device  *device;
    Plan    *plan;
    Program *program;
    Session *session;
} Run;

static void run_open(Run *r, const char *text)
{
    static const char *const passes[] = {"recompute", "schedule", "place", "emit"};
    CompileOptions           options = compile_defaults();
    *r = (Run){.device = family_device(2)};
    EXPECT_OK(plan_start(&r->arena, &options, r->device, &r->plan));
    r->program = r->plan->programs = arena_new(&r->arena, Program);
    r->plan->num_programs = 1;
    r->program->spec.entry = &entry_micro;
    r->program->name = "micro_first";
    options.verify = true;
    PassContext context = {.arena = &r->arena, .options = &options, .device = r->device, .plan = r->plan, .program = r->program};
    EXPECT_OK(graph_parse(&r->arena, "text", text, strlen(text), op_table, OP_COUNT, &r->program->graph));
    for (int i = 0; i < 4; i++) {
        int index;
        EXPECT_OK(pass_find(passes[i], &index));
        if (i == 2) EXPECT_OK(layout_add(r->plan, &options, r->program->graph));
        EXPECT_OK(pass_run(&context, index));
    }
    EXPECT_OK(session_create(r->plan, r->device, &r->session));
}

static void run_close(Run *r)
{
    session_destroy(r->session);
    r->device->api->destroy(r->device);
    arena_deinit(&r->arena);
}
