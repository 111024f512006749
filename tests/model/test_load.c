/* The load program: every element of every dtype arrives unchanged, in pieces, and the host never holds more than a few MiB beside the
 * plan. */
#include "files/file.h"
#include "model/weights.h"
#include "ops/op_case.h"
#include "passes/compile.h"
#include "test.h"

#include "base/philox.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

/* Parameters for each way in which a file may store them; a fusion packs gate and up. */
static const char module_text[] =
    "{\"surogate_ir\": 1, \"architecture\": \"Small\", \"config\": [{\"symbol\": \"V\", \"key\": \"v\"}, {\"symbol\": \"C\", \"key\": \"c\"},"
    " {\"symbol\": \"F\", \"key\": \"f\"}], \"require\": [], \"ignored\": [], \"refused\": [], \"graph\": ["
    "{\"param\": \"embed\", \"shape\": [\"V\", \"C\"], \"hf\": \"embed\", \"init\": {\"normal\": \"1\"}},"
    "{\"param\": \"norm\", \"shape\": [\"C\"], \"hf\": \"norm\", \"init\": \"ones\", \"decay\": false},"
    "{\"repeat\": \"1\", \"index\": \"i\", \"body\": ["
    "{\"param\": \"gate\", \"shape\": [\"F\", \"C\"], \"linear\": true, \"hf\": {\"slice\": \"gates\", \"begin\": \"F\", \"total\": \"3 * F\"},"
    " \"export\": \"gate\"},"
    "{\"param\": \"up\", \"shape\": [\"F\", \"C\"], \"linear\": true, \"hf\": {\"concat\": [\"up.a\", \"up.b\"]}},"
    "{\"param\": \"down\", \"shape\": [\"C\", \"F\"], \"linear\": true, \"hf\": {\"transpose\": \"down\"}}]},"
    "{\"op\": \"embedding\", \"in\": [\"tokens\", \"embed\"], \"out\": \"x\"},"
    "{\"op\": \"rms_norm\", \"in\": [\"x\", \"norm\"], \"out\": \"h\"},"
    "{\"op\": \"linear\", \"in\": [\"h\", \"gate\"], \"out\": \"g\"}, {\"op\": \"linear\", \"in\": [\"h\", \"up\"], \"out\": \"u\"},"
    "{\"op\": \"swiglu\", \"in\": [\"g\", \"u\"], \"out\": \"s\"}, {\"op\": \"linear\", \"in\": [\"s\", \"down\"], \"out\": \"d\"},"
    "{\"op\": \"linear\", \"in\": [\"d\", \"embed\"], \"out\": \"logits\"},"
    "{\"op\": \"cross_entropy\", \"in\": [\"logits\", \"labels\"], \"out\": \"losses\"},"
    "{\"op\": \"loss_sum\", \"in\": [\"losses\", \"hyper\"], \"out\": \"loss\"},"
    "{\"output\": \"losses\", \"is\": \"losses\"}, {\"output\": \"loss\", \"is\": \"loss\"}]}";

typedef struct Size {
    int64_t v, c, f;
} Size;

enum { NUM_TENSORS = 6 };

/* The tensors in the file of a model of module_text, with dims of `size`. */
static void declare(Size size, StDType dtype, StDecl decls[NUM_TENSORS])
{
    const StDecl all[NUM_TENSORS] = {
        {.name = "embed", .ndim = 2, .dim = {size.v, size.c}},     {.name = "norm", .ndim = 1, .dim = {size.c}},
        {.name = "gates", .ndim = 2, .dim = {3 * size.f, size.c}}, {.name = "up.a", .ndim = 2, .dim = {size.f / 2, size.c}},
        {.name = "up.b", .ndim = 2, .dim = {size.f / 2, size.c}},  {.name = "down", .ndim = 2, .dim = {size.f, size.c}},
    };
    for (int i = 0; i < NUM_TENSORS; i++) {
        decls[i] = all[i];
        decls[i].dtype = dtype;
    }
}

typedef struct Loading {
    Arena     arena;
    char      dir[64];
    HfModel   model;
    DeviceApi api; /* the device's API under another name, so that its memory isn't taken for the host's */
    Device   *device;
    Plan     *plan;
    Session  *session;
} Loading;

/* A model of zeros, in a sparse file. */
static void write_zeros(const char *path, const StDecl *decls)
{
    static const uint64_t align = 64;
    StrBuf                header = {0};
    unsigned long long    at = 0;
    for (int i = 0; i < NUM_TENSORS; i++) {
        unsigned long long bytes = st_decl_bytes(&decls[i]);
        strbuf_printf(&header, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[%lld", i ? "," : "{", decls[i].name, st_dtype_name(decls[i].dtype),
                      (long long)decls[i].dim[0]);
        if (decls[i].ndim == 2) strbuf_printf(&header, ",%lld", (long long)decls[i].dim[1]);
        strbuf_printf(&header, "],\"data_offsets\":[%llu,%llu]}", at, at + bytes);
        at += bytes;
    }
    strbuf_putc(&header, '}');
    while ((header.len + 8) % align) strbuf_putc(&header, ' ');
    uint64_t len = header.len;
    int      fd = open(path, O_CREAT | O_WRONLY, 0600);
    EXPECT(write(fd, &len, 8) == 8 && write(fd, header.data, header.len) == (ssize_t)header.len);
    EXPECT(ftruncate(fd, (off_t)(8 + header.len + at)) == 0);
    close(fd);
    strbuf_deinit(&header);
}

/* Random values that all of the dtypes can hold roughly, in the file's dtype. */
static void write_random(Arena *arena, const char *path, StDecl *decls)
{
    for (int i = 0; i < NUM_TENSORS; i++) {
        int64_t numel = decls[i].dim[0] * (decls[i].ndim == 2 ? decls[i].dim[1] : 1);
        float  *values = arena_array(arena, float, numel);
        double *wide = arena_array(arena, double, numel);
        DType   dtype;
        for (int64_t k = 0; k < numel; k++) values[k] = philox_uniform(philox4x32((uint32_t)k, (uint32_t)i, 0, 0, 3).v[0]) - 0.5f;
        for (int64_t k = 0; k < numel; k++) wide[k] = (double)values[k] / 3;
        decls[i].data = wide;
        if (!st_dtype_to(decls[i].dtype, &dtype)) continue; /* F64 */
        void *codes = arena_alloc(arena, (size_t)dtype_bytes(dtype, numel));
        dtype_encode(dtype, values, numel, codes);
        decls[i].data = codes;
    }
    EXPECT_OK(st_write(path, decls, NUM_TENSORS, NULL, NULL, NULL));
}

static void open_model(Loading *l, Size size, StDType dtype, bool zeros)
{
    StDecl decls[NUM_TENSORS];
    *l = (Loading){0};
    strcpy(l->dir, "/tmp/surogate_load_XXXXXX");
    EXPECT(mkdtemp(l->dir) != NULL);
    const char *path = arena_printf(&l->arena, "%s/model.safetensors", l->dir);
    declare(size, dtype, decls);
    if (zeros)
        write_zeros(path, decls);
    else
        write_random(&l->arena, path, decls);
    l->model.dir = l->dir;
    EXPECT_OK(st_open(l->dir, &l->model.weights));
}

static void compile(Loading *l, Size size, const CompileOptions *options, bool far)
{
    JsonValue *config = arena_new(&l->arena, JsonValue);
    IrModule  *module;
    char      *text =
        arena_printf(&l->arena, "{\"v\": %lld, \"c\": %lld, \"f\": %lld}", (long long)size.v, (long long)size.c, (long long)size.f);
    EXPECT_OK(json_parse(&l->arena, "config.json", text, strlen(text), config));
    EXPECT_OK(ir_module_parse(&l->arena, "small", module_text, sizeof module_text - 1, &module));
    EXPECT_OK(device_cpu_create(2, &l->device));
    l->api = *l->device->api;
    if (far) l->api.name = "far";
    l->device->api = &l->api;
    Status status = compile_plan(&l->arena, module, config, "config.json", options, l->device, &l->plan);
    EXPECT_OK(status);
    if (status != OK) exit(1);
}

static void close_model(Loading *l)
{
    session_destroy(l->session);
    l->device->api->destroy(l->device);
    st_close(l->model.weights);
    EXPECT_OK(file_remove_tree(l->dir));
    arena_deinit(&l->arena);
}

/* ---- bits ---- */

/* The parameter's elements as the file has them. */
static float *values_of(Loading *l, const Param *param)
{
    const HfSource *hf = &param->hf;
    int64_t         numel = type_numel(&param->type), cols = numel / param->type.dim[0], at = 0;
    float          *out = arena_array(&l->arena, float, numel);
    for (int i = 0; i < hf->num_names; i++) {
        const StTensor *tensor = st_find(l->model.weights, hf->names[i]);
        float          *values = arena_array(&l->arena, float, tensor->numel);
        int64_t         skip = hf->kind == HF_SLICE ? hf->begin * cols : 0, take = hf->kind == HF_SLICE ? numel : tensor->numel;
        EXPECT_OK(st_to_f32(tensor, 0, tensor->numel, values));
        for (int64_t k = 0; k < take; k++)
            out[at + k] = hf->kind == HF_TRANSPOSE ? values[k % cols * param->type.dim[0] + k / cols] : values[skip + k];
        at += take;
    }
    EXPECT_INT(at, numel);
    return out;
}

static void check_bits(Loading *l, const char *what)
{
    int masters = 0;
    for (int i = 0; i < l->plan->num_params; i++) {
        const Param     *param = l->plan->params[i];
        int64_t          numel = type_numel(&param->type), at;
        size_t           bytes = (size_t)type_bytes(&param->type);
        float           *values = values_of(l, param), *exact = arena_array(&l->arena, float, numel);
        void            *got = arena_alloc(&l->arena, bytes), *want = arena_alloc(&l->arena, bytes);
        const PlanEntry *master = plan_master(l->plan, param, &at);
        dtype_encode(param->type.dtype, values, numel, want);
        EXPECT_OK(session_read(l->session, param->name, got, bytes));
        if (memcmp(got, want, bytes) != 0) test_fail(__FILE__, __LINE__, "%s: %s differs", what, param->name);
        if (!master) continue;
        masters++;
        EXPECT_OK(session_read_range(l->session, master->name, (size_t)at * 4, exact, (size_t)numel * 4));
        if (memcmp(exact, values, (size_t)numel * 4) != 0) test_fail(__FILE__, __LINE__, "%s: master of %s differs", what, param->name);
    }
    EXPECT(masters == 0 || masters == l->plan->num_params);
}

static void every_dtype_arrives_bit_for_bit(void)
{
    static const StDType types[] = {ST_F32, ST_BF16, ST_F16, ST_F64};
    const Size           size = {700, 24, 136};
    for (int i = 0; i < 4 * 2 * 2 * 2; i++) {
        Loading        l;
        char           what[64];
        CompileOptions options = compile_defaults();
        bool           far = i & 4, train = i & 8;
        options.model_dtype = i & 16 ? DT_F32 : DT_BF16;
        options.master_weights = train && options.model_dtype == DT_BF16;
        options.train_base = train;
        options.verify = true;
        if (train)
            compile_add_training(&options, 1, 4);
        else
            compile_add(&options, &entry_eval, 1, 4);
        snprintf(what, sizeof what, "%s to %s%s%s", st_dtype_name(types[i % 4]), dtype_info(options.model_dtype)->name,
                 far ? ", far memory" : "", train ? ", trained" : "");
        open_model(&l, size, types[i % 4], false);
        compile(&l, size, &options, far);
        EXPECT(l.plan->num_arrivals > l.plan->num_params); /* embed and other weights arrive in pieces */
        EXPECT_OK(session_create(l.plan, l.device, &l.session));
        EXPECT_OK(weights_load(l.session, &l.model));
        check_bits(&l, what);
        close_model(&l);
    }
}

/* ---- memory ---- */

/* Bytes that a line of /proc/self/status reports. */
static int64_t process_bytes(const char *name)
{
    FILE     *file = fopen("/proc/self/status", "r");
    char      line[256];
    long long kib = 0;
    while (file && fgets(line, sizeof line, file))
        if (strncmp(line, name, strlen(name)) == 0) kib = atoll(line + strlen(name));
    if (file) fclose(file);
    return (int64_t)kib << 10;
}

/* Limits private writable memory: RLIMIT_DATA bounds it, and RssAnon can't exceed it. */
static void limit_data(int64_t bytes)
{
    struct rlimit limit;
    EXPECT(getrlimit(RLIMIT_DATA, &limit) == 0);
    limit.rlim_cur = bytes ? (rlim_t)bytes : limit.rlim_max;
    EXPECT(setrlimit(RLIMIT_DATA, &limit) == 0);
}

/* Every tensor except the norm takes 16 MiB or more. A process that held one of them beside the plan would end. */
static void the_host_holds_little_beside_the_plan(void)
{
    static const struct {
        StDType file;
        DType   model;
    } cases[] = {{ST_BF16, DT_BF16}, {ST_F32, DT_BF16}, {ST_BF16, DT_F32}};
    const Size size = {24576, 1024, 8192};
    if (TEST_IS_WATCHED) SKIP("the sanitizer's own memory has no bound");
    for (int i = 0; i < 12; i++) {
        Loading        l;
        CompileOptions options = compile_defaults();
        bool           far = i >= 6;
        options.model_dtype = cases[i % 3].model;
        options.weight_format = i % 6 < 3 ? NULL : weight_format_at(i % 3);
        options.train_base = false;
        compile_add(&options, &entry_eval, 1, 64);
        open_model(&l, size, cases[i % 3].file, true);
        compile(&l, size, &options, far);
        limit_data(process_bytes("VmData:") + plan_total_bytes(l.plan) + (12 << 20));
        EXPECT_OK(session_create(l.plan, l.device, &l.session));
        EXPECT_OK(weights_load(l.session, &l.model));
        limit_data(0);
        close_model(&l);
    }
}

/* Staged pieces use the memory of activations, which is free while weights arrive. */
static void loading_adds_nothing_to_a_plan(void)
{
    const Size size = {24576, 1024, 8192};
    for (int i = 0; i < 4; i++) {
        Loading        l = {0};
        CompileOptions options = compile_defaults();
        options.model_dtype = i & 1 ? DT_F32 : DT_BF16;
        if (i & 2)
            compile_add(&options, &entry_eval, 1, 8);
        else
            compile_add_training(&options, 1, 8);
        compile(&l, size, &options, false);
        int64_t        most = 0;
        const Program *load = plan_program(l.plan, &entry_load);
        for (int k = 0; k < l.plan->num_programs; k++)
            if (&l.plan->programs[k] != load && l.plan->programs[k].activation_bytes > most) most = l.plan->programs[k].activation_bytes;
        EXPECT(load->activation_bytes > 0 && load->activation_bytes <= most);
        EXPECT_INT(l.plan->region_bytes[SPACE_DEVICE][REGION_ACTIVATIONS], most);
        l.device->api->destroy(l.device);
        arena_deinit(&l.arena);
    }
}

/* Part k of a quantised matrix, as the plan keeps it, must equal output k of the op that quantises the file's values. */
static void check_part(Loading *l, const Param *param, const OpCase *q, int k)
{
    const char *name = weight_part_name(&l->arena, param->format, param->name, k);
    void       *got = arena_alloc(&l->arena, q->out[k].bytes);
    EXPECT_OK(session_read(l->session, name, got, q->out[k].bytes));
    if (memcmp(got, q->out[k].data, q->out[k].bytes) != 0) test_fail(__FILE__, __LINE__, "%s differs", name);
}

/* A matrix may be a slice of a tensor, several tensors, or a transposed tensor. */
static void quantised_ones_arrive_bit_for_bit(void)
{
    const Size size = {700, 32, 144};
    for (int i = 0; i < 6; i++) {
        Loading        l;
        CompileOptions options = compile_defaults();
        int            count = 0;
        options.weight_format = weight_format_at(i / 2);
        options.model_dtype = DT_BF16;
        options.train_base = false;
        compile_add(&options, &entry_eval, 1, 4);
        open_model(&l, size, ST_F32, false);
        compile(&l, size, &options, i & 1);
        EXPECT_OK(session_create(l.plan, l.device, &l.session));
        EXPECT_OK(weights_load(l.session, &l.model));
        for (int p = 0; p < l.plan->num_params; p++) {
            const Param *param = l.plan->params[p];
            TensorType   types[NODE_MAX_IN] = {param->type};
            OpCase       q;
            types[0].dtype = DT_F32;
            if (!param->format) continue;
            count++;
            EXPECT_OK(op_case_make(&q, param->format->quantise, param->format->attrs, types));
            memcpy(q.in[0].data, values_of(&l, param), q.in[0].bytes);
            EXPECT_OK(op_case_run(&q, &param->format->quantise->cpu[0], 1, param->name));
            for (int k = 0; k < param->format->num_parts; k++) check_part(&l, param, &q, k);
            op_case_free(&q);
        }
        EXPECT_INT(count, 3);
        close_model(&l);
    }
}

TEST_MAIN(TEST(quantised_ones_arrive_bit_for_bit), TEST(every_dtype_arrives_bit_for_bit), TEST(the_host_holds_little_beside_the_plan),
          TEST(loading_adds_nothing_to_a_plan))
