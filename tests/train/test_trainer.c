/* Runs of a tiny model in this process: what a step may allocate, the effect of a bad step, and which checkpoint resuming falls back to. */
#include "train/trainer.h"

#include "base/hash.h"
#include "base/log.h"
#include "model/new.h"
#include "store/run_record.h"
#include "store/trainer_state.h"
#include "text/bpe_train.h"

#include "test.h"

#include <dlfcn.h>
#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- counting allocations: every malloc of the process comes through here ---- */

static atomic_long num_allocations;
static atomic_bool is_counting;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { CAN_COUNT = 0 };
#else
enum { CAN_COUNT = 1 };
void *__libc_malloc(size_t size);
void *__libc_calloc(size_t count, size_t size);
void *__libc_realloc(void *memory, size_t size);
void *__libc_memalign(size_t alignment, size_t size);

static void count(void)
{
    if (atomic_load(&is_counting)) atomic_fetch_add(&num_allocations, 1);
}
void *malloc(size_t size)
{
    count();
    return __libc_malloc(size);
}
void *calloc(size_t number, size_t size)
{
    count();
    return __libc_calloc(number, size);
}
void *realloc(void *memory, size_t size)
{
    count();
    return __libc_realloc(memory, size);
}
void *aligned_alloc(size_t alignment, size_t size)
{
    count();
    return __libc_memalign(alignment, size);
}
#endif

/* ---- a process that ends at a certain rename, a file system that can't exchange, a folder that appears ---- */

static atomic_int  renames_left; /* n: this process is killed right before the n-th rename of a checkpoint from now on; 0: never */
static atomic_bool no_exchange;
static const char *appearing, *appears_as; /* a folder that another program moves into place right before mkdir creates it */

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static void count_rename(const char *to)
{
    const char *name = strrchr(to, '/');
    if (!name || !strstr(name, "checkpoint-")) return;
    if (renames_left > 0 && --renames_left == 0) raise(SIGKILL);
}

int rename(const char *from, const char *to)
{
    count_rename(to);
    return REAL(rename)(from, to);
}

long syscall(long number, ...)
{
    va_list list;
    long    a[6];
    va_start(list, number);
    for (int i = 0; i < 6; i++) a[i] = va_arg(list, long);
    va_end(list);
    if (number == SYS_renameat2) count_rename((const char *)a[3]);
    if (number == SYS_renameat2 && no_exchange) {
        errno = EINVAL;
        return -1;
    }
    return REAL(syscall)(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}

int mkdir(const char *path, mode_t mode)
{
    if (appearing && strcmp(path, appears_as) == 0) {
        EXPECT_INT(rename(appearing, path), 0);
        appearing = NULL;
    }
    return REAL(mkdir)(path, mode);
}

/* ---- a tiny run in a folder of its own ---- */

static char folder[64];

static const char *in_folder(const char *name)
{
    static char paths[8][256];
    static int  next;
    char       *path = paths[next++ % 8];
    snprintf(path, sizeof paths[0], "%s/%s", folder, name);
    return path;
}

static void open_folder(void)
{
    strcpy(folder, "/tmp/surogate_trainer_XXXXXX");
    EXPECT(mkdtemp(folder) != NULL);
    StrBuf text = {0};
    for (int i = 0; i < 3000; i++) strbuf_printf(&text, "line %d says %d and goes on\n", i, i * 7919 % 1000);
    EXPECT_OK(file_write_atomic(in_folder("text.txt"), text.data, text.len));
    static const char *const special[] = {"<|end|>"};
    BpeTrainOptions          options = {.vocab_size = 300, .special_tokens = special, .num_special_tokens = 1, .eos_token = special[0]};
    BpeTrainer              *trainer;
    Str                      all = {text.data, text.len};
    EXPECT_OK(bpe_trainer_create(&options, &trainer));
    EXPECT_OK(bpe_trainer_add(trainer, &all, 1));
    EXPECT_OK(bpe_trainer_train(trainer));
    EXPECT_OK(bpe_trainer_save(trainer, in_folder("tokenizer")));
    bpe_trainer_destroy(trainer);
    strbuf_deinit(&text);
    static const char *const settings[] = {"hidden_size=32", "intermediate_size=48", "vocab_size=300", "head_dim=8"};
    NewOptions               model = {.arch = "qwen3-tiny",
                                      .settings = settings,
                                      .num_settings = 4,
                                      .weights = true,
                                      .seed = 1,
                                      .tokenizer = in_folder("tokenizer"),
                                      .max_shard_bytes = 1 << 30};
    EXPECT_OK(new_model(&model, in_folder("model")));
    log_mute(true);
}

static void close_folder(void)
{
    EXPECT_OK(file_remove_tree(folder));
}

static Status train_with(const char *more, const TrainHooks *hooks, TrainOutcome *outcome)
{
    Config config;
    StrBuf text = {0}, problems = {0};
    strbuf_printf(&text,
                  "model: %s\noutput_dir: %s\ndatasets: [{path: %s}]\nsequence_len: 32\n"
                  "logging_steps: 1000\nmodel_dtype: fp32\n%s",
                  in_folder("model"), in_folder("out"), in_folder("text.txt"), more);
    EXPECT_OK(config_parse("run.yaml", text.data, text.len, NULL, 0, &config, &problems));
    Status status = train_run(&config, hooks, outcome);
    config_deinit(&config);
    strbuf_deinit(&text);
    strbuf_deinit(&problems);
    return status;
}

/* ---- cases ---- */

static void start_counting(void *context, int64_t step)
{
    (void)context;
    if (step >= 1) atomic_store(&is_counting, true);
}

static void stop_counting(void *context, int64_t step)
{
    (void)context;
    (void)step;
    atomic_store(&is_counting, false);
}

static void steps_allocate_nothing_from_the_second_on(void)
{
    if (!CAN_COUNT) SKIP("a sanitizer owns malloc");
    TrainHooks   hooks = {.step_begin = start_counting, .step_end = stop_counting};
    TrainOutcome outcome;
    open_folder();
    atomic_store(&num_allocations, 0);
    EXPECT_OK(train_with("max_steps: 30\nthreads: 2\nsave_steps: 10\nlora: true\nlora_rank: 2\nlora_dropout: 0.1\n", &hooks, &outcome));
    EXPECT_INT(outcome.steps, 30);
    EXPECT_INT(atomic_load(&num_allocations), 0);
    free(malloc(1)); /* checks that the counter counts */
    atomic_store(&is_counting, true);
    void *volatile probe = malloc(1);
    free(probe);
    atomic_store(&is_counting, false);
    EXPECT_INT(atomic_load(&num_allocations), 1);
    close_folder();
}

/* A step that diverges changes no weight and is counted; the third in a row ends the run. */
static void divergence_stops_with_the_weights_of_before(void)
{
    TrainOutcome outcome;
    open_folder();
    EXPECT_FAILS(train_with("max_steps: 30\nlearning_rate: 1000\nweight_decay: 100\nsave_steps: 1\n", NULL, &outcome), ERR_DIVERGED,
                 "3 steps in a row");
    EXPECT(outcome.steps >= 3 && outcome.steps < 30);
    close_folder();
}

static void flip_byte(const char *path)
{
    FILE *file = fopen(path, "r+b");
    EXPECT(file != NULL);
    if (!file) return;
    fseek(file, -100, SEEK_END);
    int byte = fgetc(file);
    fseek(file, -100, SEEK_END);
    fputc(byte ^ 1, file);
    fclose(file);
}

static void a_damaged_checkpoint_is_passed_over(void)
{
    TrainOutcome outcome;
    char         newest[256];
    open_folder();
    EXPECT_OK(train_with("max_steps: 12\nsave_steps: 4\nsave_total_limit: 3\n", NULL, &outcome));
    EXPECT_OK(checkpoint_newest(in_folder("out"), newest, sizeof newest));
    EXPECT_CONTAINS(newest, "checkpoint-12");
    flip_byte(in_folder("out/checkpoint-12/optimizer.safetensors"));
    EXPECT_FAILS(checkpoint_verify(in_folder("out/checkpoint-12")), ERR_CHECKPOINT, "checksum");
    EXPECT_OK(checkpoint_newest(in_folder("out"), newest, sizeof newest));
    EXPECT_CONTAINS(newest, "checkpoint-8");
    EXPECT(truncate(in_folder("out/checkpoint-8/model.safetensors"), 1000) == 0);
    EXPECT(unlink(in_folder("out/checkpoint-4/manifest.json")) == 0);
    EXPECT_OK(checkpoint_newest(in_folder("out"), newest, sizeof newest));
    EXPECT_STR(newest, "");
    EXPECT_FAILS(train_with("max_steps: 12\nresume_from_checkpoint: true\n", NULL, &outcome), ERR_CHECKPOINT, "no valid checkpoint");
    close_folder();
}

/* Writes the manifest of a checkpoint whose optimizer.safetensors a test wrote. */
static void rewrite_manifest(const char *folder)
{
    static const char *const names[] = {"model.safetensors", "optimizer.safetensors", "run_state.json", "config.json"};
    char                     path[256];
    StrBuf                   text = {0};
    for (int i = 0; i < 4; i++) {
        uint64_t hash = 0;
        snprintf(path, sizeof path, "%s/%s", folder, names[i]);
        EXPECT_OK(file_hash(path, &hash));
        strbuf_printf(&text, "%s{\"name\": \"%s\", \"bytes\": %lld, \"xxh3\": \"%016llx\"}", i ? ", " : "{\"files\": [", names[i],
                      (long long)bytes_of(path), (unsigned long long)hash);
    }
    strbuf_puts(&text, "]}");
    snprintf(path, sizeof path, "%s/manifest.json", folder);
    EXPECT_OK(file_write_atomic(path, text.data, text.len));
    strbuf_deinit(&text);
}

/* Replaces `from` by `to` in run_state.json, and writes a manifest that fits. */
static void reseal_state(const char *from, const char *to)
{
    Arena       arena = {0};
    Str         text;
    StrBuf      other = {0};
    const char *path = in_folder("out/checkpoint-12/run_state.json");
    EXPECT_OK(file_read(&arena, path, 1 << 16, &text));
    const char *at = strstr(text.data, from);
    EXPECT(at != NULL);
    if (at) strbuf_printf(&other, "%.*s%s%s", (int)(at - text.data), text.data, to, at + strlen(from));
    EXPECT_OK(file_write_atomic(path, strbuf_cstr(&other), other.len));
    rewrite_manifest(in_folder("out/checkpoint-12"));
    strbuf_deinit(&other);
    arena_deinit(&arena);
}

/* Every field is checked, even if the checksums are right. */
static void a_state_that_no_run_writes_is_passed_over(void)
{
    static const struct {
        const char *from, *to, *says;
    } cases[] = {
        {"\"version\": 1", "\"version\": 9", "is of another version"},
        {"\"step\": 12", "\"step\": 11", "applied 12 and skipped 0 aren't step 11"},
        {"\"step\": 12,\n  \"applied\": 12", "\"step\": 8,\n  \"applied\": 8", "is of step 8, its folder is checkpoint-12"},
        {"\"step\": 12", "\"step\": 12.5", "step is missing, or no whole number"},
        {"\"applied\": 12", "\"applied\": -5", "below 0"},
        {"\"applied\": 12", "\"applied\": 13", "applied 13"},
        {"\"skipped\": 0", "\"skipped\": 9223372036854775807", "skipped"},
        {"\"bad_in_row\": 0", "\"bad_in_row\": 2", "bad_in_row 2"},
        {"\"total_tokens\": ", "\"total_tokens\": -", "below 0"},
        {"\"total_trained\": ", "\"total_trained\": 9", "tokens were trained"},
        {"\"total_trained\": ", "\"total_trained\": \"many\", \"x\": ", "total_trained"},
        {"\"metrics_bytes\": ", "\"metrics_bytes\": -", "below 0"},
        {"\"metrics_hash\": \"", "\"metrics_hash\": \"-", "metrics_hash"},
        {"\"eval_pending\": false", "\"eval_pending\": 0", "eval_pending"},
        {"\"settings_hash\": \"", "\"settings_hash\": \"0x", "settings_hash"},
        {"\"data_hash\": \"", "\"data_hash\": \" ", "data_hash"},
    };
    TrainOutcome outcome;
    char         newest[256];
    open_folder();
    EXPECT_OK(train_with("max_steps: 12\nsave_steps: 8\n", NULL, &outcome));
    EXPECT_OK(checkpoint_verify(in_folder("out/checkpoint-12")));
    test_copy(in_folder("out/checkpoint-12/run_state.json"), in_folder("state"));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        test_copy(in_folder("state"), in_folder("out/checkpoint-12/run_state.json"));
        reseal_state(cases[i].from, cases[i].to);
        EXPECT_FAILS(checkpoint_verify(in_folder("out/checkpoint-12")), ERR_CHECKPOINT, cases[i].says);
        EXPECT_OK(checkpoint_newest(in_folder("out"), newest, sizeof newest));
        EXPECT_CONTAINS(newest, "checkpoint-8");
    }
    test_copy(in_folder("state"), in_folder("out/checkpoint-12/run_state.json"));
    static const char *const manifests[] = {"{\"version\": 2, \"files\": []}", "{\"files\": []}",
                                            "{\"files\": [{\"name\": \"config.json\"}]}",
                                            "{\"files\": [{\"name\": \"../x\", \"bytes\": 1, \"xxh3\": \"0000000000000000\"}]}",
                                            "{\"files\": [{\"name\": \"config.json\", \"bytes\": 1, \"xxh3\": \"0\"}]}"};
    for (size_t i = 0; i < sizeof manifests / sizeof *manifests; i++) {
        EXPECT_OK(file_write_atomic(in_folder("out/checkpoint-12/manifest.json"), manifests[i], strlen(manifests[i])));
        EXPECT_FAILS(checkpoint_verify(in_folder("out/checkpoint-12")), ERR_CHECKPOINT, "manifest.json");
    }
    close_folder();
}

/* Writes a safetensors file of `count` tensors of `from`, from number `first` on; the last has rows_more additional rows. */
static void rewrite_states(const char *from, const char *to, size_t first, size_t count, const char *const *metadata, int64_t rows_more)
{
    StFile *file;
    EXPECT_OK(st_open(from, &file));
    StDecl *decls = calloc(count, sizeof *decls);
    void   *longer = NULL;
    for (size_t i = 0; i < count; i++) {
        const StTensor *t = st_at(file, first + i);
        decls[i] = (StDecl){.name = t->name, .dtype = t->dtype, .ndim = t->ndim, .data = t->data};
        memcpy(decls[i].dim, t->dim, sizeof t->dim);
    }
    if (rows_more) {
        decls[count - 1].dim[0] += rows_more;
        longer = calloc(1, st_decl_bytes(&decls[count - 1]));
        decls[count - 1].data = longer;
    }
    EXPECT_OK(st_write(to, decls, count, metadata, NULL, NULL));
    free(longer);
    free(decls);
    st_close(file);
}

/* Checkpoints that can't be resumed are refused with a message that says what they are and what to do. */
static void states_of_another_kind_are_refused(void)
{
    static const char *const        ours[] = {"version", "2", "optimizer", "adamw", NULL},
                             *const other[] = {"version", "2", "optimizer", "sgd", NULL}, *const later[] = {"version", "3", NULL};
    static const struct {
        const char *const *metadata;
        size_t             first, left_out;
        int64_t            rows_more;
        const char        *says;
    } cases[] = {
        {other, 1, 1, 0, "of optimizer sgd, this run's is adamw"},
        {later, 0, 0, 0, "has version 3; this program reads version 2"},
        {ours, 1, 1, 0, ".m is missing: is the checkpoint of another model"},
        {ours, 0, 0, 2, "this run's is f32["},
    };
    TrainOutcome outcome;
    open_folder();
    EXPECT_OK(train_with("max_steps: 4\n", NULL, &outcome));
    StFile *file;
    test_copy(in_folder("out/checkpoint-4/optimizer.safetensors"), in_folder("states"));
    EXPECT_OK(st_open(in_folder("states"), &file));
    size_t count = st_count(file);
    st_close(file);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        rewrite_states(in_folder("states"), in_folder("out/checkpoint-4/optimizer.safetensors"), cases[i].first, count - cases[i].left_out,
                       cases[i].metadata, cases[i].rows_more);
        rewrite_manifest(in_folder("out/checkpoint-4"));
        EXPECT_FAILS(train_with("max_steps: 6\nresume_from_checkpoint: true\n", NULL, &outcome), ERR_CHECKPOINT, cases[i].says);
        EXPECT(i == 1 || strstr(status_message(), "begin a new run: model: ") != NULL);
    }
    close_folder();
}

/* The older format, with all moments in one tensor. */
static void flat_states_are_refused(void)
{
    static const int64_t segments[8];
    static const float   moments[64];
    StDecl               decls[] = {{.name = "adam.m", .dtype = ST_F32, .ndim = 1, .dim = {64}, .data = moments},
                                    {.name = "adam.v", .dtype = ST_F32, .ndim = 1, .dim = {64}, .data = moments},
                                    {.name = "segments", .dtype = ST_I64, .ndim = 2, .dim = {2, 4}, .data = segments}};
    TrainOutcome         outcome;
    open_folder();
    EXPECT_OK(train_with("max_steps: 4\n", NULL, &outcome));
    EXPECT_OK(st_write(in_folder("out/checkpoint-4/optimizer.safetensors"), decls, 3, NULL, NULL, NULL));
    rewrite_manifest(in_folder("out/checkpoint-4"));
    EXPECT_FAILS(train_with("max_steps: 6\nresume_from_checkpoint: true\n", NULL, &outcome), ERR_CHECKPOINT, "older format");
    EXPECT_CONTAINS(status_message(), "begin a new run: model: ");
    close_folder();
}

static void the_oldest_checkpoints_go(void)
{
    TrainOutcome outcome;
    open_folder();
    EXPECT_OK(train_with("max_steps: 10\nsave_steps: 2\nsave_total_limit: 2\n", NULL, &outcome));
    EXPECT(!is_folder(in_folder("out/checkpoint-6")));
    EXPECT(is_folder(in_folder("out/checkpoint-8")) && is_folder(in_folder("out/checkpoint-10")));
    close_folder();
}

/* A run that saves over a checkpoint of the same step is killed before each of its renames. */
static void a_replaced_checkpoint_is_there_until_the_new_one_is(void)
{
    char again[256];
    bool was_killed = true;
    int  num_kills = 0;
    open_folder();
    TrainOutcome outcome;
    EXPECT_OK(train_with("max_steps: 8\nsave_steps: 4\nsave_total_limit: 0\n", NULL, &outcome));
    EXPECT_INT(rename(in_folder("out"), in_folder("other")), 0);
    EXPECT_OK(train_with("max_steps: 4\n", NULL, &outcome));
    snprintf(again, sizeof again, "max_steps: 8\nsave_steps: 4\nsave_total_limit: 0\nresume_from_checkpoint: %s\n",
             in_folder("other/checkpoint-4"));
    EXPECT_INT(rename(in_folder("other/checkpoint-4"), in_folder("other/.checkpoint-4.replaced")), 0);
    for (int exchanges = 0; exchanges < 2; exchanges++) {
        was_killed = true;
        for (int at = 1; was_killed && at < 100; at++) {
            int   status = 0;
            pid_t child = fork();
            if (child == 0) {
                renames_left = at;
                no_exchange = !exchanges;
                _exit(train_with(again, NULL, &outcome) != OK);
            }
            EXPECT(child > 0 && waitpid(child, &status, 0) == child);
            was_killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
            EXPECT(was_killed || (WIFEXITED(status) && WEXITSTATUS(status) == 0));
            EXPECT_OK(checkpoint_restore(in_folder("out")));
            EXPECT_OK(checkpoint_verify(in_folder("out/checkpoint-4")));
            num_kills += was_killed;
        }
        EXPECT(!was_killed && num_kills > 0);
        EXPECT(access(in_folder("out/.checkpoint-4.replaced"), F_OK) != 0 && access(in_folder("out/.checkpoint-4.partial"), F_OK) != 0);
    }
    close_folder();
}

/* Two runs begin together: the second sees what the first wrote while it opened its model. */
static void a_run_that_appears_is_left_alone(void)
{
    TrainOutcome outcome;
    uint64_t     before = 0, after = 1;
    open_folder();
    EXPECT_OK(train_with("max_steps: 4\n", NULL, &outcome));
    EXPECT_OK(file_hash(in_folder("out/model.safetensors"), &before));
    EXPECT_INT(rename(in_folder("out"), in_folder("first")), 0);
    appearing = in_folder("first");
    appears_as = in_folder("out");
    EXPECT_OK(train_with("max_steps: 4\n", NULL, &outcome));
    EXPECT(!appearing && outcome.already_finished);
    EXPECT_INT(rename(in_folder("out"), in_folder("first")), 0);
    appearing = in_folder("first");
    appears_as = in_folder("out");
    EXPECT_FAILS(train_with("max_steps: 4\nlearning_rate: 1e-5\n", NULL, &outcome), ERR_INVALID, "a finished run with other settings");
    EXPECT_OK(file_hash(in_folder("out/model.safetensors"), &after));
    EXPECT(before == after);
    close_folder();
}

static void a_finished_run_is_left_alone_and_others_refused(void)
{
    TrainOutcome outcome;
    open_folder();
    EXPECT_OK(train_with("max_steps: 4\n", NULL, &outcome));
    EXPECT_OK(train_with("max_steps: 4\nthreads: 1\n", NULL, &outcome));
    EXPECT(outcome.already_finished);
    EXPECT_FAILS(train_with("max_steps: 5\n", NULL, &outcome), ERR_INVALID, "max_steps");
    EXPECT_OK(train_with("max_steps: 6\nresume_from_checkpoint: true\n", NULL, &outcome));
    EXPECT_INT(outcome.steps, 6);
    EXPECT_OK(train_with("max_steps: 3\nresume_from_checkpoint: false\n", NULL, &outcome));
    EXPECT_INT(outcome.steps, 3);
    EXPECT(!is_folder(in_folder("out/checkpoint-6")));
    close_folder();
}

/* Number of trained tokens at the end of the run. */
static int64_t trained_at_end(const char *more)
{
    TrainOutcome outcome;
    TrainState   state = {0};
    char         newest[256];
    EXPECT_OK(train_with(more, NULL, &outcome));
    EXPECT_OK(checkpoint_newest(in_folder("out"), newest, sizeof newest));
    EXPECT_OK(checkpoint_read_state(newest, &state));
    EXPECT_INT(state.step, outcome.steps);
    return state.total_trained;
}

/* Rewrites the checkpoint as older versions wrote it. */
static void forget_rows(const char *checkpoint)
{
    Arena       arena = {0};
    Str         text;
    const char *path = arena_printf(&arena, "%s/run_state.json", checkpoint);
    EXPECT_OK(file_read(&arena, path, 1 << 20, &text));
    char *at = strstr(text.data, ",\n  \"rows\"");
    EXPECT(at != NULL);
    strcpy(at, "\n}\n");
    EXPECT_OK(file_write_atomic(path, text.data, strlen(text.data)));
    rewrite_manifest(checkpoint);
    arena_deinit(&arena);
}

/* A run that resumes with another number of rows per step reads each row as often as its epochs say. */
static void the_cursor_counts_rows(void)
{
    open_folder();
    static const char text[] = "0123456789abcdefghijklmnopqrstuvwxyz ABCDEFGHIJKLMNOPQRSTUVWXYZ ~!@#$%^&*()_+{}[]:;<>?,./|= ";
    StrBuf            few = {0};
    for (int i = 0; i < 4; i++) strbuf_puts(&few, text);
    EXPECT_OK(file_write_atomic(in_folder("text.txt"), few.data, few.len));
    strbuf_deinit(&few);
#define SMALL "save_total_limit: 20\nper_device_train_batch_size: 1\nlr_scheduler_type: constant\nwarmup_ratio: 0\n"
    int64_t     epoch = trained_at_end(SMALL "num_epochs: 1\n");
    const char *begun = SMALL "num_epochs: 2\ngradient_accumulation_steps: 4\nresume_from_checkpoint: false\nsave_steps: 2\n";
    const char *finer = SMALL "num_epochs: 4\ngradient_accumulation_steps: 1\nresume_from_checkpoint: true\n";
    EXPECT_INT(trained_at_end(begun), 2 * epoch);
    EXPECT_INT(trained_at_end(finer), 4 * epoch);
    EXPECT_INT(trained_at_end(SMALL "num_epochs: 7\ngradient_accumulation_steps: 5\nresume_from_checkpoint: true\n"), 7 * epoch);
    EXPECT_INT(trained_at_end(begun), 2 * epoch);
    TrainOutcome outcome;
    EXPECT_FAILS(train_with(SMALL "num_epochs: 1\nresume_from_checkpoint: true\n", NULL, &outcome), ERR_INVALID,
                 "raise max_steps or num_epochs");
    char at_two[600], path[256];
    snprintf(path, sizeof path, "%s", in_folder("out/checkpoint-2"));
    forget_rows(path);
    snprintf(at_two, sizeof at_two, SMALL "save_steps: 2\nnum_epochs: 4\ngradient_accumulation_steps: 2\nresume_from_checkpoint: %s\n",
             path);
    for (int again = 0; again < 2; again++) EXPECT_INT(trained_at_end(at_two), 4 * epoch); /* by then its run.json has another batch size */
    close_folder();
}

/* Removes the line of a key from a record, as if written by a version without that key. */
static void drop_key(RunRecord *record, const char *key)
{
    char *line = strstr(record->settings.data, key), *end = strchr(line, '\n') + 1;
    memmove(line, end, strlen(end) + 1);
    record->settings.len -= (size_t)(end - line);
    record->hash = hash_bytes(record->model.data, record->model.len, hash_bytes(record->settings.data, record->settings.len, 0));
}

static bool goes_on(const char *now_text, bool without, StrBuf *difference, bool *has_hash)
{
    static const char before_text[] = "model: m\ndatasets: [{path: a.txt}, {path: b.txt}]\nseed: 7\n";
    static IrModule   module;
    static HfModel    model = {.config_text = {"{}", 2}, .module = &module};
    Config            before, now;
    RunRecord         there, here;
    EXPECT_OK(config_parse("before", before_text, sizeof before_text - 1, NULL, 0, &before, NULL));
    EXPECT_OK(config_parse("now", now_text, strlen(now_text), NULL, 0, &now, NULL));
    run_record_make(&before, &model, 1, 0, &there);
    run_record_make(&now, &model, 1, 0, &here);
    if (without) {
        drop_key(&there, "weight_decay: ");
        drop_key(&there, "    samples: ");
        drop_key(&there, "    samples: ");
    }
    strbuf_clear(difference);
    bool same = run_record_same_settings(&there, &here, difference);
    *has_hash = run_record_has_hash(&here, there.said_hash) && (!same || without || run_record_has_hash(&here, there.hash));
    run_record_deinit(&there);
    run_record_deinit(&here);
    config_deinit(&before);
    config_deinit(&now);
    return same;
}

/* Keys of the run or of a data set that are missing in the record have their defaults. */
static void a_record_may_lack_keys(void)
{
    static const char data[] = "model: m\nseed: 7\ndatasets: [{path: a.txt}, {path: b.txt";
    static const struct {
        const char *end;  /* end of the run file */
        const char *says; /* NULL: the run is resumed */
    } cases[] = {
        {"}]", NULL},
        {", samples: 0}]\nweight_decay: 0.1", NULL},
        {"}]\nweight_decay: 0.2", "there \"max_grad_norm: 1.0\", here \"weight_decay: 0.2\""},
        {", samples: 9}]", "samples: 9"},
        {"}]\nadamw_beta1: 0.8", "there \"adamw_beta1: 0.9\", here \"adamw_beta1: 0.8\""},
    };
    StrBuf difference = {0};
    open_folder();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[256];
        bool has_hash;
        snprintf(text, sizeof text, "%s%s\n", data, cases[i].end);
        for (int without = 0; without < 2; without++) {
            bool same = goes_on(text, without, &difference, &has_hash);
            EXPECT_INT(same, !cases[i].says);
            EXPECT_INT(has_hash, !cases[i].says);
            if (cases[i].says && without) EXPECT_CONTAINS(strbuf_cstr(&difference), cases[i].says);
        }
    }
    strbuf_deinit(&difference);
    close_folder();
}

/* A base is read again only if its files were modified. */
static void an_untouched_base_is_not_read_again(void)
{
    Arena     arena = {0};
    HfModel  *model;
    RunRecord none = {0}, first = {0}, again = {0}, touched = {0};
    open_folder();
    for (int i = 0; i < 50 && file_stamp(in_folder("model/model.safetensors")) == 0; i++) usleep(100000);
    EXPECT_OK(hf_model_open(&arena, in_folder("model"), &model));
    EXPECT_OK(run_record_base(model, &none, 2, &first));
    EXPECT(first.base != 0 && first.base_stamp != 0 && first.base != 12345);
    RunRecord known = {.base = 12345, .base_stamp = first.base_stamp};
    EXPECT_OK(run_record_base(model, &known, 2, &again));
    EXPECT_INT(again.base, 12345);
    flip_byte(in_folder("model/model.safetensors"));
    EXPECT_INT(file_stamp(in_folder("model/model.safetensors")), 0); /* modified too recently to be told from a further change */
    EXPECT_OK(run_record_base(model, &known, 1, &touched));
    EXPECT(touched.base != first.base && touched.base != 12345);
    hf_model_close(model);
    arena_deinit(&arena);
    close_folder();
}

static void write_steps(Metrics *metrics, int64_t from, int64_t to)
{
    for (int64_t step = from; step <= to; step++) {
        StepMetrics line = {.step = step, .epoch = (double)step / 100, .loss = 1.0 / (double)step, .norm = 0.1, .lr = 1e-3, .seconds = 0.1};
        EXPECT_OK(metrics_step(metrics, &line));
        EvalMetrics eval = {.step = step, .loss = 2.0 / (double)step, .tokens = 100, .trained = 90, .seconds = 0.5};
        if (step % 4 == 0) EXPECT_OK(metrics_eval(metrics, &eval));
    }
    static const char text[] = "a sample";
    EXPECT_OK(metrics_sample(metrics, to, "a prompt", text, strlen(text)));
}

/* The log of a long run isn't kept in memory. Reading it back gives the same, and the file is cut at the mark. */
static void a_long_log_is_told_in_bounded_memory(void)
{
    enum { STEPS = 120000 };
    TrainerFacts facts = {.max_steps = STEPS, .logging_steps = 1, .rows_per_step = 1, .finished = true};
    TrainState   state = {.step = STEPS};
    StrBuf       live = {0}, again = {0};
    MetricsMark  mark = {0}, end = {0};
    int64_t      bytes = 0;
    Metrics     *metrics = NULL;
    open_folder();
    const char *path = in_folder("metrics.jsonl");
    EXPECT_OK(metrics_open(path, &mark, 1, &metrics));
    write_steps(metrics, 1, STEPS);
    EXPECT_OK(metrics_sync(metrics, &end));
    end.step = STEPS;
    EXPECT_OK(file_size(path, &bytes));
    EXPECT_INT(end.bytes, bytes);
    trainer_state_text(metrics_history(metrics), &state, &facts, &live);
    write_steps(metrics, STEPS + 1, STEPS + 5);
    metrics_close(metrics);
    EXPECT_OK(metrics_open(path, &end, 1, &metrics));
    const MetricsFound *found = metrics_found(metrics);
    EXPECT(!found->is_cut && !found->is_changed && !found->num_bad && found->cut_first == STEPS + 1 && found->cut_last == STEPS + 5);
    EXPECT_OK(file_size(path, &bytes));
    EXPECT_INT(bytes, end.bytes);
    const History *history = metrics_history(metrics);
    EXPECT_INT(history->steps.seen, STEPS);
    EXPECT(history_count(&history->steps) < 5000 && history_count(&history->evals) < 5000 && history->samples.len < 200);
    EXPECT_INT(history_at(&history->steps, history_count(&history->steps) - 1)->step, STEPS);
    EXPECT(history->trend.best_step == STEPS && fabs(history->trend.best * STEPS / 2 - 1) < 1e-8);
    trainer_state_text(history, &state, &facts, &again);
    EXPECT_STR(live.data, again.data);
    EXPECT(live.len < (4 << 20));
    metrics_close(metrics);
    strbuf_deinit(&live);
    strbuf_deinit(&again);
    close_folder();
}

static void saved_folders_carry_the_tokenizer_byte_for_byte(void)
{
    TrainOutcome outcome;
    uint64_t     before = 0, after = 1;
    open_folder();
    EXPECT_OK(train_with("max_steps: 2\n", NULL, &outcome));
    EXPECT_OK(file_hash(in_folder("model/tokenizer.json"), &before));
    EXPECT_OK(file_hash(in_folder("out/tokenizer.json"), &after));
    EXPECT(before == after);
    EXPECT_OK(file_hash(in_folder("model/config.json"), &before));
    EXPECT_OK(file_hash(in_folder("out/config.json"), &after));
    EXPECT(before == after);
    close_folder();
}

static void sleep_in_step(void *context, int64_t step)
{
    if (step == 3) sleep(*(const unsigned *)context);
}

/* Rank 0 is slow in one step: this is reported, and the run continues; a rank that hangs ends all. */
static void a_rank_that_stands_still(void)
{
    static const char text[] = "max_steps: 5\ngpus: 3\ndevice: cpu\ngradient_accumulation_steps: 1\ncomm_timeout: 1\nsave_steps: 2\n";
    unsigned          seconds = 3;
    TrainHooks        hooks = {.context = &seconds, .step_begin = sleep_in_step};
    TrainOutcome      outcome;
    open_folder();
    EXPECT_OK(train_with(text, &hooks, &outcome));
    EXPECT_INT(outcome.steps, 5);
    close_folder();
    open_folder();
    seconds = 12; /* more than comm_timeout and 10 s; 2 s later the process would be ended */
    EXPECT_FAILS(train_with(text, &hooks, &outcome), ERR_RANK, "rank 0: no progress");
    EXPECT_OK(checkpoint_verify(in_folder("out/checkpoint-2")));
    seconds = 0;
    EXPECT_OK(train_with(text, &hooks, &outcome));
    EXPECT_INT(outcome.steps, 5);
    close_folder();
}

TEST_MAIN(TEST(a_rank_that_stands_still), TEST(steps_allocate_nothing_from_the_second_on),
          TEST(divergence_stops_with_the_weights_of_before), TEST(a_damaged_checkpoint_is_passed_over),
          TEST(a_state_that_no_run_writes_is_passed_over), TEST(states_of_another_kind_are_refused), TEST(flat_states_are_refused),
          TEST(the_oldest_checkpoints_go), TEST(a_replaced_checkpoint_is_there_until_the_new_one_is),
          TEST(a_run_that_appears_is_left_alone), TEST(a_finished_run_is_left_alone_and_others_refused), TEST(a_record_may_lack_keys),
          TEST(an_untouched_base_is_not_read_again), TEST(a_long_log_is_told_in_bounded_memory), TEST(the_cursor_counts_rows),
          TEST(saved_folders_carry_the_tokenizer_byte_for_byte))
