/* Stochastic rounding in every kernel that uses it: for each of 64 values, the mean of a million roundings is within 4 sigma of the
 * value. */
#include "base/philox.h"
#include "ops/vec.h"
#include "text_run.h"

enum { VALUES = 64, COPIES = 16384, NUMEL = VALUES * COPIES, RUNS = 62 };

/* %1$s: the rounded dtype; with f32 nothing is rounded. */
static const char adamw[] =
    "graph \"adamw\"\n"
    "state w: %1$s[1048576]\n"
    "state g: f32[1048576]\n"
    "state m: f32[1048576]\n"
    "state v: %1$s[1048576]\n"
    "state one: f32[1]\n"
    "state hyper: f32[8]\n"
    "input step: i64[4]\n"
    "const segments: i64[1,5] data=[0,1048576,1,7,0]\n"
    "u: %1$s[1048576], u.1: f32[1048576], u.2: %1$s[1048576], _ = adamw(w, g, m, v, one, one, hyper, step, segments) "
    "{beta1=0.9, beta2=0.95, eps=1e-08, weight_decay=0.1, max_grad_norm=0, stochastic=true}\n"
    "output first = u\n"
    "output second = u.2\n";

static const char adamw_8bit[] = "graph \"adamw_8bit\"\n"
                                 "state w: %1$s[1048576]\n"
                                 "state g: f32[1048576]\n"
                                 "state m.codes: u8[1048576]\n"
                                 "state v.codes: u8[1048576]\n"
                                 "state m.scale: f32[4097]\n"
                                 "state v.scale: f32[4097]\n"
                                 "state one: f32[1]\n"
                                 "state hyper: f32[8]\n"
                                 "input step: i64[4]\n"
                                 "const segments: i64[1,5] data=[0,1048576,1,7,0]\n"
                                 "u: %1$s[1048576], u.1: u8[1048576], u.2: u8[1048576], u.3: f32[4097], u.4: f32[4097], _ = "
                                 "adamw_8bit(w, g, m.codes, v.codes, m.scale, v.scale, one, one, hyper, step, segments) "
                                 "{beta1=0.9, beta2=0.95, eps=1e-08, weight_decay=0.1, max_grad_norm=0, stochastic=true}\n"
                                 "output first = u\n";

static const char normuon[] = "graph \"normuon\"\n"
                              "state w: %1$s[16384,64]\n"
                              "state g: f32[16384,64]\n"
                              "state v.rows: f32[16384]\n"
                              "state one: f32[1]\n"
                              "state hyper: f32[8]\n"
                              "input step: i64[4]\n"
                              "u: %1$s[16384,64], u.1: f32[16384], _ = normuon_update(w, g, v.rows, one, one, hyper, step) "
                              "{beta2=0.95, eps=1e-10, weight_decay=0.1, stochastic=true, key=7}\n"
                              "output first = u\n";

static const char nvfp4[] = "graph \"nvfp4\"\n"
                            "state x: f32[16384,64]\n"
                            "input step: i64[4]\n"
                            "state doc_id: i32[16384]\n"
                            "state positions: i32[16384]\n"
                            "q: e2m1[16384,64], q.1: e4m3[16384,4], q.2: f32[1] = nvfp4_quantise(x, step, doc_id, positions) "
                            "{transposed=false, two_d=false, four_six=false, stochastic=true, hadamard=false, site=3}\n"
                            "w: f32[16384,64] = nvfp4_dequantise(q, q.1, q.2) {dtype=f32, transposed=false}\n"
                            "output first = w\n";

/* The values are rows of x and of w. */
static const char nvfp4_transposed[] =
    "graph \"nvfp4_transposed\"\n"
    "state x.rows: f32[64,16384]\n"
    "input step: i64[4]\n"
    "state doc_id: i32[64]\n"
    "state positions: i32[64]\n"
    "q: e2m1[16384,64], q.1: e4m3[16384,4], q.2: f32[1] = nvfp4_quantise(x.rows, step, doc_id, positions) "
    "{transposed=true, two_d=false, four_six=false, stochastic=true, hadamard=false, site=3}\n"
    "w: f32[16384,64] = nvfp4_dequantise(q, q.1, q.2) {dtype=f32, transposed=false}\n"
    "output first = w\n";

/* ---- inputs ---- */

/* Value i of the tensor `name`. */
static float value_of(const char *name, int i)
{
    /* block scales that e4m3 holds while the tensor's scale is 1: otherwise values could be beyond the largest code */
    static const float largest[] = {2688, 6, 0.75f, 10.5f};
    Philox4            word = philox4x32((uint32_t)i, 0, 0, 0, philox_name_key(name));
    float              u = 2 * philox_uniform(word.v[0]) - 1;
    if (name[0] == 'x') return i % 16 == 3 ? largest[i / 16] : u * largest[i / 16];
    if (name[0] == 'w') u = ldexpf(u < 0 ? u - 1 : u + 1, i % 8 - 4);
    if (name[0] == 'v') u = 0.01f * u * u;
    return bf16_to_f32(bf16_from_f32(u)); /* a value that both dtypes hold exactly */
}

static void set_element(const PlanEntry *entry, void *data, int64_t i)
{
    static const float hyper[HYPER_COUNT] = {0.01f, 1, 0.5f, 0.25f};
    const char        *name = entry->name;
    int                value = (int)(strcmp(name, "x.rows") == 0 ? i / COPIES : i % VALUES);
    if (entry->type.dtype == DT_I64)
        ((int64_t *)data)[i] = 5;
    else if (entry->type.dtype == DT_I32)
        ((int32_t *)data)[i] = (int32_t)i;
    else if (entry->type.dtype == DT_U8)
        ((uint8_t *)data)[i] = name[0] == 'm' ? 127 : 0; /* the code of the value 0 */
    else if (strcmp(name, "hyper") == 0)
        vec_set(data, DT_F32, i, hyper[i]);
    else if (strcmp(name, "one") == 0 || strcmp(name, "v.rows") == 0)
        vec_set(data, DT_F32, i, 1);
    else if (!strstr(name, "scale"))
        vec_set(data, entry->type.dtype, i, value_of(name, value));
}

enum { MOST_ENTRIES = 16 };

typedef struct Images {
    void *data[MOST_ENTRIES]; /* data of the plan's entries; NULL: not written */
} Images;

static Images images_make(const Run *r)
{
    Images images = {{0}};
    EXPECT(r->plan->num_entries <= MOST_ENTRIES);
    for (int i = 0; i < r->plan->num_entries; i++) {
        const PlanEntry *entry = &r->plan->entries[i];
        if (strcmp(entry->name, "segments") == 0) continue;
        images.data[i] = calloc(1, (size_t)entry->place.bytes);
        for (int64_t k = 0, n = type_numel(&entry->type); k < n; k++) set_element(entry, images.data[i], k);
    }
    return images;
}

static void images_free(Images *images)
{
    for (int i = 0; i < MOST_ENTRIES; i++) free(images->data[i]);
}

/* Runs the program as optimizer step `index`, from the same state every time. */
static void run_step(Run *r, Images *images, int64_t index)
{
    for (int i = 0; i < r->plan->num_entries; i++) {
        const PlanEntry *entry = &r->plan->entries[i];
        if (!images->data[i]) continue;
        if (entry->type.dtype == DT_I64) ((int64_t *)images->data[i])[STEP_INDEX] = index;
        EXPECT_OK(session_write(r->session, entry->name, images->data[i], (size_t)entry->place.bytes));
    }
    EXPECT_OK(session_run(r->session, r->program));
}

/* ---- the means ---- */

typedef struct Means {
    double exact[VALUES], sum[VALUES], square[VALUES]; /* expected values; sums of differences from them, and of squared differences */
} Means;

static void add_results(Run *r, const char *output, DType dtype, Means *m)
{
    size_t bytes = (size_t)dtype_bytes(dtype, NUMEL);
    void  *data = malloc(bytes);
    EXPECT_OK(session_output(r->session, r->program, output, data, bytes));
    for (int64_t i = 0; i < NUMEL; i++) {
        double d = (double)vec_get(data, dtype, i) - m->exact[i % VALUES];
        m->sum[i % VALUES] += d;
        m->square[i % VALUES] += d * d;
    }
    free(data);
}

/* least: how far arithmetic other than the rounding may shift a mean, relative to the value. */
static void check_means(const char *name, const Means *m, double least)
{
    double count = (double)RUNS * COPIES;
    int    rounded = 0;
    for (int i = 0; i < VALUES; i++) {
        double mean = m->sum[i] / count, variance = m->square[i] / count - mean * mean;
        rounded += variance > 0;
        if (!(fabs(mean) <= 4 * sqrt(fmax(variance, 0) / count) + least * fabs(m->exact[i])))
            test_fail(__FILE__, __LINE__, "%s: the mean of %.9g is off by %.3g, sigma is %.3g", name, m->exact[i], mean,
                      sqrt(fmax(variance, 0) / count));
    }
    EXPECT(rounded > VALUES * 3 / 4);
}

/* Checks outputs stored as bf16; exact values are the outputs of the same text stored as f32. */
static void check_update(const char *name, const char *text, int num_outputs)
{
    if (TEST_IS_WATCHED) SKIP("means of many numbers; other tests run these ops");
    static const char *const outputs[] = {"first", "second"};
    static Means             means[2];
    memset(means, 0, sizeof means);
    for (int is_bf16 = 0; is_bf16 < 2; is_bf16++) {
        Run   r;
        char *typed = NULL;
        EXPECT(asprintf(&typed, text, is_bf16 ? "bf16" : "f32") > 0);
        run_open(&r, typed);
        Images images = images_make(&r);
        for (int run = 0; run < (is_bf16 ? RUNS : 1); run++) {
            run_step(&r, &images, run);
            for (int k = 0; k < num_outputs && is_bf16; k++) add_results(&r, outputs[k], DT_BF16, &means[k]);
        }
        for (int k = 0; k < num_outputs && !is_bf16; k++) {
            float *exact = malloc(NUMEL * sizeof *exact);
            EXPECT_OK(session_output(r.session, r.program, outputs[k], exact, NUMEL * sizeof *exact));
            for (int i = 0; i < VALUES; i++) means[k].exact[i] = (double)exact[i];
            free(exact);
        }
        images_free(&images);
        run_close(&r);
        free(typed);
    }
    for (int k = 0; k < num_outputs; k++) check_means(name, &means[k], 0x1p-22);
}

static void check_nvfp4(const char *name, const char *text)
{
    if (TEST_IS_WATCHED) SKIP("means of many numbers; other tests run these ops");
    Run   r;
    Means means;
    memset(&means, 0, sizeof means);
    run_open(&r, text);
    Images images = images_make(&r);
    for (int i = 0; i < VALUES; i++) means.exact[i] = (double)value_of(strstr(text, "x.rows") ? "x.rows" : "x", i);
    for (int run = 0; run < RUNS; run++) {
        run_step(&r, &images, run);
        add_results(&r, "first", DT_F32, &means);
    }
    check_means(name, &means, 0x1p-16);
    images_free(&images);
    run_close(&r);
}

static void adamw_rounds_weights_and_moments_without_bias(void)
{
    check_update("adamw", adamw, 2);
}

static void adamw_8bit_rounds_without_bias(void)
{
    check_update("adamw_8bit", adamw_8bit, 1);
}

static void normuon_rounds_without_bias(void)
{
    check_update("normuon", normuon, 1);
}

static void nvfp4_rounds_without_bias(void)
{
    check_nvfp4("nvfp4", nvfp4);
    check_nvfp4("nvfp4, transposed", nvfp4_transposed);
}

TEST_MAIN(TEST(adamw_rounds_weights_and_moments_without_bias), TEST(adamw_8bit_rounds_without_bias), TEST(normuon_rounds_without_bias),
          TEST(nvfp4_rounds_without_bias))
