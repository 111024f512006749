/* Simulated time: launches of one stream follow one another, those of two overlap but for waits; rates are used where there are any. */
#include "run/timeline.h"

#include "ops/ops.h"
#include "test.h"

enum { FAST = 1, SLOW = 4 };

/* A launch of `add` over so many GB: with the rates below, as many seconds. */
static Launch work(Graph *graph, int gigabytes, Stream stream)
{
    TensorType type = type_make(DT_F32, 1, (int64_t)gigabytes * 1000000000 / 12);
    Value     *in[] = {graph_add_value(graph, VALUE_INPUT, "a", &type), graph_add_value(graph, VALUE_INPUT, "b", &type)};
    Node      *node;
    EXPECT_OK(graph_add_node(graph, &op_add, NULL, "sum", in, 2, ~0u, &node));
    return (Launch){.node = node, .stream = stream};
}

static const OpRate rates[] = {{"add", 0, 1e9, 0}, {0}};

static void streams_overlap_but_for_waits(void)
{
    Arena       arena = {0};
    Graph      *graph = graph_create(&arena, "g", op_table, OP_COUNT);
    DeviceFacts facts = {.rates = rates, .bandwidth = 1};
    Launch      launches[] = {work(graph, SLOW, STREAM_COMPUTE), work(graph, FAST, STREAM_COPY_IN), work(graph, FAST, STREAM_COPY_IN),
                              work(graph, FAST, STREAM_COMPUTE)};
    Timeline    t;
    timeline_simulate(&arena, &facts, launches, 4, &t);
    EXPECT_NEAR(t.seconds, SLOW + FAST, 1e-6);
    EXPECT_NEAR(t.busy[STREAM_COPY_IN], 2 * FAST, 1e-6);
    EXPECT_INT(t.num_critical, 2);
    launches[1].wait[STREAM_COMPUTE] = 1; /* the copies wait for the long launch, the last launch for the copies */
    launches[3].wait[STREAM_COPY_IN] = 3;
    timeline_simulate(&arena, &facts, launches, 4, &t);
    EXPECT_NEAR(t.seconds, SLOW + 3 * FAST, 1e-6);
    EXPECT_INT(t.num_critical, 4);
    EXPECT_NEAR(t.start[1], SLOW, 1e-6);
    arena_deinit(&arena);
}

static void one_stream_takes_the_sum(void)
{
    Arena       arena = {0};
    Graph      *graph = graph_create(&arena, "g", op_table, OP_COUNT);
    DeviceFacts facts = {.bandwidth = 2e9, .launch_seconds = 0.5}; /* no rates: the data sheet */
    Launch      launches[] = {work(graph, 2, STREAM_COMPUTE), work(graph, 4, STREAM_COMPUTE)};
    Timeline    t;
    timeline_simulate(&arena, &facts, launches, 2, &t);
    EXPECT_NEAR(t.seconds, 1.5 + 2.5, 1e-6);
    EXPECT_INT(t.num_critical, 2);
    EXPECT(device_rates("NVIDIA H200") != NULL && device_rates("no GPU of this name") == NULL);
    arena_deinit(&arena);
}

TEST_MAIN(TEST(streams_overlap_but_for_waits), TEST(one_stream_takes_the_sum))
