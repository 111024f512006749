/* Simulated time: launches of one stream run one after another, launches of two streams overlap except for waits; measured rates are used
 * if there are any. */
#include "run/timeline.h"

#include "ops/ops.h"
#include "test.h"

enum { FAST = 1, SLOW = 4 };

/* A launch of `add` that moves this many GB; at the rates below it takes as many seconds. */
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
    DeviceFacts facts = {.bandwidth = 2e9, .launch_seconds = 0.5}; /* without rates: by the data sheet */
    Launch      launches[] = {work(graph, 2, STREAM_COMPUTE), work(graph, 4, STREAM_COMPUTE)};
    Timeline    t;
    timeline_simulate(&arena, &facts, launches, 2, &t);
    EXPECT_NEAR(t.seconds, 1.5 + 2.5, 1e-6);
    EXPECT_INT(t.num_critical, 2);
    arena_deinit(&arena);
}

static void power_takes_the_sum_over_streams(void)
{
    Arena       arena = {0};
    Graph      *graph = graph_create(&arena, "g", op_table, OP_COUNT);
    DeviceFacts facts = {.rates = rates, .bandwidth = 1, .power_flops = 1, .power_fp8_flops = 1, .power_bytes = 2e9};
    Launch      launches[] = {work(graph, SLOW, STREAM_COMPUTE), work(graph, SLOW, STREAM_COPY_IN), work(graph, SLOW, STREAM_COMM)};
    Timeline    t;
    timeline_simulate(&arena, &facts, launches, 3, &t);
    EXPECT_NEAR(t.power_seconds, 3 * SLOW / 2.0, 1e-6);
    EXPECT_NEAR(t.seconds, 3 * SLOW / 2.0, 1e-6);
    facts.power_bytes = 6e9; /* less than the streams would need */
    timeline_simulate(&arena, &facts, launches, 3, &t);
    EXPECT_NEAR(t.seconds, SLOW, 1e-6);
    arena_deinit(&arena);
}

static void measured_rates_are_of_one_gpu(void)
{
    DeviceFacts h200 = {.name = "NVIDIA H200", .link_in = 64e9}, other = {.name = "no GPU of this name", .link_in = 64e9};
    device_use_rates(&h200);
    device_use_rates(&other);
    EXPECT(h200.rates && h200.link_in < 64e9 && h200.link_in > 0 && h200.link_out > 0);
    EXPECT(h200.peer_link > 300e9 && h200.peer_link < 450e9 && h200.peer_seconds > 1e-5);
    EXPECT(h200.power_flops > 400e12 && h200.power_fp8_flops > h200.power_flops && h200.power_bytes > 4e12);
    EXPECT(!other.rates && other.link_in == 64e9);
}

/* A copy of this many GB from one space to the other. */
static Launch copy(Graph *graph, int gigabytes, Space from, Space to)
{
    TensorType type = type_make(DT_U8, 1, (int64_t)gigabytes * 1000000000);
    Value     *x = graph_add_value(graph, VALUE_INPUT, "x", &type);
    Node      *node;
    x->space = from;
    EXPECT_OK(graph_add_node(graph, &op_copy, NULL, "y", &x, 1, ~0u, &node));
    node->out[0]->space = to;
    return (Launch){.node = node, .stream = to == SPACE_HOST ? STREAM_COPY_OUT : STREAM_COPY_IN};
}

static void copies_between_spaces_take_the_link(void)
{
    Arena       arena = {0};
    Graph      *graph = graph_create(&arena, "g", op_table, OP_COUNT);
    DeviceFacts facts = {.rates = rates, .bandwidth = 1e9, .link_in = 0.5e9, .link_out = 0.25e9};
    Launch      in = copy(graph, 3, SPACE_HOST, SPACE_DEVICE), out = copy(graph, 3, SPACE_DEVICE, SPACE_HOST);
    Launch      here = copy(graph, 3, SPACE_DEVICE, SPACE_DEVICE), both[] = {in, out, work(graph, SLOW, STREAM_COMPUTE)};
    Timeline    t;
    EXPECT_NEAR(launch_seconds(&facts, &in), 6, 1e-6);
    EXPECT_NEAR(launch_seconds(&facts, &out), 12, 1e-6);
    EXPECT_NEAR(launch_seconds(&facts, &here), 6, 1e-6); /* each byte is read and written */
    timeline_simulate(&arena, &facts, both, 3, &t);
    EXPECT_NEAR(t.seconds, 12, 1e-6);
    facts.link_in = facts.link_out = 0; /* the link's speed is unknown */
    facts.bandwidth = 6e9;
    EXPECT_NEAR(launch_seconds(&facts, &in), 1, 1e-6);
    arena_deinit(&arena);
}

/* A collective of `ranks` ranks over 4 GB in total. */
static Launch collective(Graph *graph, const OpDef *op, int ranks)
{
    RanksAttrs     each = {.ranks = ranks};
    AllReduceAttrs all = {.ranks = ranks};
    bool           is_gather = op == &op_gather;
    TensorType     type = type_make(DT_F32, 1, INT64_C(1000000000) / (is_gather ? ranks : 1));
    Value         *x = graph_add_value(graph, VALUE_ACTIVATION, "x", &type);
    Node          *node;
    EXPECT_OK(graph_add_node(graph, op, op == &op_all_reduce ? (const void *)&all : &each, "y", &x, 1, ~0u, &node));
    return (Launch){.node = node, .stream = STREAM_COMM};
}

/* Each rank sends (n-1)/n of the whole and receives as much at the same time; an all-reduce transfers twice that. */
static void collectives_take_the_links_between_gpus(void)
{
    Arena       arena = {0};
    Graph      *graph = graph_create(&arena, "g", op_table, OP_COUNT);
    DeviceFacts facts = {.bandwidth = 1e12, .peer_link = 1e9, .peer_seconds = 0.25};
    Launch      gather = collective(graph, &op_gather, 4), scatter = collective(graph, &op_reduce_scatter, 4);
    Launch      sum = collective(graph, &op_all_reduce, 2), alone = collective(graph, &op_gather, 1);
    Launch      beside[] = {gather, work(graph, 4, STREAM_COMPUTE)};
    Timeline    t;
    EXPECT_NEAR(launch_seconds(&facts, &gather), 3.25, 1e-6);
    EXPECT_NEAR(launch_seconds(&facts, &scatter), 3.25, 1e-6);
    EXPECT_NEAR(launch_seconds(&facts, &sum), 4.25, 1e-6);
    EXPECT_NEAR(launch_seconds(&facts, &alone), 8e-3, 1e-6); /* each byte is read and written */
    timeline_simulate(&arena, &facts, beside, 2, &t);
    EXPECT_NEAR(t.seconds, 3.25, 1e-6);
    EXPECT(t.busy[STREAM_COMM] > 3 && t.busy[STREAM_COMPUTE] < 1);
    facts.peer_link = 0; /* the link's speed is unknown */
    EXPECT_NEAR(launch_seconds(&facts, &gather), 5e-3, 1e-6);
    arena_deinit(&arena);
}

/* A launch that reads a table on the host moves over the link only the bytes of its cost, not the whole table. */
static void a_few_rows_take_the_link_for_as_much(void)
{
    Arena       arena = {0};
    Graph      *graph = graph_create(&arena, "g", op_table, OP_COUNT);
    DeviceFacts facts = {.link_in = 1};
    TensorType  tokens = type_make(DT_I32, 2, INT64_C(1), INT64_C(4)), table = type_make(DT_F32, 2, INT64_C(1000), INT64_C(8));
    Value      *in[] = {graph_add_value(graph, VALUE_INPUT, "tokens", &tokens), graph_add_value(graph, VALUE_PARAM, "table", &table)};
    Node       *node;
    in[1]->space = SPACE_HOST;
    EXPECT_OK(graph_add_node(graph, &op_embedding, NULL, "x", in, 2, ~0u, &node));
    Launch launch = {.node = node};
    EXPECT_NEAR(launch_link_seconds(&facts, &launch), launch_cost(&launch).bytes, 1e-6);
    EXPECT(launch_link_seconds(&facts, &launch) < 1000);
    arena_deinit(&arena);
}

TEST_MAIN(TEST(streams_overlap_but_for_waits), TEST(one_stream_takes_the_sum), TEST(power_takes_the_sum_over_streams),
          TEST(measured_rates_are_of_one_gpu), TEST(copies_between_spaces_take_the_link), TEST(collectives_take_the_links_between_gpus),
          TEST(a_few_rows_take_the_link_for_as_much))
