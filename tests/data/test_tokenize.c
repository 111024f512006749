/* Tokenizing datasets: the same bytes with any number of threads and after kill -9; cache keys that notice every change; bad rows. */
#include "data/inspect.h"
#include "data/loader.h"
#include "data/record.h"
#include "data/split.h"
#include "data_util.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

/* A byte-level tokenizer without merges: 256 bytes and an end-of-text token. */
static Tokenizer *byte_tokenizer(const char *eos)
{
    StrBuf json = {0};
    strbuf_puts(&json, "{\"version\":\"1.0\",\"added_tokens\":[{\"id\":256,\"content\":\"<|end|>\",\"special\":true,\"normalized\":false}],"
                       "\"normalizer\":null,\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":true},"
                       "\"post_processor\":null,\"decoder\":{\"type\":\"ByteLevel\"},\"model\":{\"type\":\"BPE\",\"vocab\":{");
    int next = 0;
    for (int byte = 0; byte < 256; byte++) {
        bool is_plain = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
        strbuf_printf(&json, "%s\"\\u%04x\":%d", byte ? "," : "", is_plain ? byte : 256 + next, byte);
        next += !is_plain;
    }
    strbuf_puts(&json, "},\"merges\":[]}}");
    const char *dir = scratch_dir();
    char        config[200];
    Tokenizer  *tokenizer = NULL;
    snprintf(config, sizeof config, "{\"eos_token\": \"%s\"}", eos);
    EXPECT_OK(file_write_atomic(path_in(dir, "tokenizer.json"), json.data, json.len));
    EXPECT_OK(file_write_atomic(path_in(dir, "tokenizer_config.json"), config, strlen(config)));
    EXPECT_OK(tokenizer_load(dir, &tokenizer));
    EXPECT_OK(file_remove_tree(dir));
    strbuf_deinit(&json);
    return tokenizer;
}

static const char source[] = "{% for m in messages %}[{{ m.role }}]{{ m.content }}<|end|>{% endfor %}"
                             "{% if add_generation_prompt %}[assistant]{% endif %}";

typedef struct Kit {
    const char    *dir;
    char           data[4200], cache[4200];
    Tokenizer     *tokenizer;
    Template      *tmpl;
    DatasetOptions dataset;
    TokenizeJob    job;
    TokenizeReport report;
} Kit;

static void kit_open(Kit *kit)
{
    *kit = (Kit){.dir = strdup(scratch_dir()), .tokenizer = byte_tokenizer("<|end|>")};
    EXPECT_OK(template_parse("template", source, strlen(source), &kit->tmpl));
    snprintf(kit->data, sizeof kit->data, "%s/data.jsonl", kit->dir);
    snprintf(kit->cache, sizeof kit->cache, "%s/cache", kit->dir);
    kit->dataset = (DatasetOptions){.path = kit->data};
    kit->job =
        (TokenizeJob){.tokenizer = kit->tokenizer, .tmpl = kit->tmpl, .cache_dir = kit->cache, .num_threads = 2, .shard_tokens = 20000};
    kit->job.dataset = &kit->dataset;
}

static void kit_close(Kit *kit)
{
    EXPECT_OK(file_remove_tree(kit->dir));
    tokenizer_destroy(kit->tokenizer);
    template_destroy(kit->tmpl);
    free((void *)kit->dir);
}

/* Writes `rows` conversations; every `bad`th row is broken JSON (0: none). */
static void write_chats(Kit *kit, int rows, int bad)
{
    StrBuf text = {0};
    for (int i = 0; i < rows; i++) {
        if (bad && i % bad == bad - 1)
            strbuf_puts(&text, "{\"messages\": [}\n");
        else
            strbuf_printf(&text,
                          "{\"messages\": [{\"role\": \"user\", \"content\": \"question %d of %.*s\"}, {\"role\": \"assistant\", "
                          "\"content\": \"answer %d\"}]}\n",
                          i, i % 97,
                          "a rather long text that goes on and on, for as long as anybody may care to read what it has to say.....", i * i);
    }
    EXPECT_OK(file_write_atomic(kit->data, text.data, text.len));
    strbuf_deinit(&text);
}

/* Hash of dataset.json and all shards in a folder. */
static uint64_t folder_hash(const char *dir)
{
    uint64_t hash = 0, one;
    for (int i = 0; i < 1000; i++) {
        char path[4300];
        snprintf(path, sizeof path, "%s/shard-%05d.tokens", dir, i);
        if (!is_there(path)) break;
        EXPECT_OK(file_hash(path, &one));
        hash = hash * 31 + one;
    }
    EXPECT_OK(file_hash(path_in(dir, "dataset.json"), &one));
    return hash * 31 + one;
}

static void threads_change_no_byte(void)
{
    Kit      kit;
    uint64_t first = 0;
    kit_open(&kit);
    write_chats(&kit, 30000, 0);
    for (int threads = 1; threads <= 5; threads += 2) {
        EXPECT_OK(file_remove_tree(kit.cache));
        kit.job.num_threads = threads;
        EXPECT_OK(tokenize_dataset(&kit.job, &kit.report));
        EXPECT(!kit.report.was_cached);
        EXPECT_INT(kit.report.num_rows, 30000);
        EXPECT_INT(kit.report.num_documents, 30000);
        uint64_t hash = folder_hash(kit.report.dir);
        if (threads == 1) first = hash;
        EXPECT(hash == first);
    }
    TokenizeReport again;
    EXPECT_OK(tokenize_dataset(&kit.job, &again));
    EXPECT(again.was_cached);
    EXPECT_INT(again.num_tokens, kit.report.num_tokens);
    EXPECT_CONTAINS(again.format, "conversation");
    kit_close(&kit);
}

static bool kill_at(void *context, int64_t rows, int64_t tokens, double fraction)
{
    (void)tokens;
    (void)fraction;
    if (rows >= *(int64_t *)context) kill(getpid(), SIGKILL);
    return true;
}

/* Tokenizes in a child process that is killed after it has read `rows` rows. */
static void tokenize_killed_at(Kit *kit, int64_t rows)
{
    pid_t child = fork();
    if (child == 0) {
        kit->job.progress = kill_at;
        kit->job.context = &rows;
        _exit(tokenize_dataset(&kit->job, &kit->report) == OK);
    }
    int state;
    EXPECT(waitpid(child, &state, 0) == child && WIFSIGNALED(state));
}

static void killed_runs_end_with_equal_bytes(void)
{
    Kit kit;
    kit_open(&kit);
    write_chats(&kit, 40000, 500);
    kit.dataset.skip_bad_rows = true;
    EXPECT_OK(tokenize_dataset(&kit.job, &kit.report));
    EXPECT_INT(kit.report.num_bad_rows, 80);
    EXPECT_INT(kit.report.num_examples, 5);
    EXPECT_CONTAINS(kit.report.examples[0], "data.jsonl:500:");
    uint64_t want = folder_hash(kit.report.dir);
    EXPECT_OK(file_remove_tree(kit.cache));
    for (int64_t at = 4000; at < 40000; at += 9000) tokenize_killed_at(&kit, at);
    EXPECT_OK(tokenize_dataset(&kit.job, &kit.report));
    EXPECT(folder_hash(kit.report.dir) == want);
    EXPECT_INT(kit.report.num_bad_rows, 80);
    EXPECT(!is_there(path_in(kit.report.dir, "progress.json")));
    kit_close(&kit);
}

/* Tokenizes in a child process. Its exit code: 0: it made the dataset; 1: the dataset existed; 2: an error. Its stderr goes to `log`. */
static pid_t tokenize_in_child(Kit *kit, const char *log)
{
    pid_t child = fork();
    if (child != 0) return child;
    if (!freopen(log, "a", stderr) || setvbuf(stderr, NULL, _IONBF, 0) != 0) _exit(2);
    Status status = tokenize_dataset(&kit->job, &kit->report);
    if (status != OK) fprintf(stderr, "%s\n", status_message());
    _exit(status != OK ? 2 : kit->report.was_cached);
}

/* Waits for the children, all of which must exit normally. Returns how many made the dataset. */
static int count_makers(const pid_t *children, int count)
{
    int makers = 0, state;
    for (int i = 0; i < count; i++) {
        EXPECT(waitpid(children[i], &state, 0) == children[i] && WIFEXITED(state) && WEXITSTATUS(state) <= 1);
        makers += WIFEXITED(state) && WEXITSTATUS(state) == 0;
    }
    return makers;
}

static int count_lines(const char *path, const char *part)
{
    char  line[8192];
    int   count = 0;
    FILE *file = fopen(path, "r");
    while (file && fgets(line, sizeof line, file)) count += strstr(line, part) != NULL;
    if (file) fclose(file);
    return count;
}

static void processes_that_share_a_cache_make_it_once(void)
{
    enum { CHILDREN = 4 };
    Kit   kit;
    pid_t children[CHILDREN];
    kit_open(&kit);
    write_chats(&kit, 30000, 0);
    EXPECT_OK(tokenize_dataset(&kit.job, &kit.report));
    uint64_t want = folder_hash(kit.report.dir);
    for (int trial = 0; trial < 5; trial++) {
        EXPECT_OK(file_remove_tree(kit.cache));
        for (int i = 0; i < CHILDREN; i++) children[i] = tokenize_in_child(&kit, path_in(kit.dir, "log"));
        EXPECT_INT(count_makers(children, CHILDREN), 1);
        EXPECT(folder_hash(kit.report.dir) == want);
    }
    kit_close(&kit);
}

static bool stop_at(void *context, int64_t rows, int64_t tokens, double fraction)
{
    (void)tokens;
    (void)fraction;
    if (rows >= *(int64_t *)context) raise(SIGSTOP);
    return true;
}

/* The maker is stopped halfway and killed while two others wait for it: one of them continues its work. */
static void those_that_wait_go_on_for_a_killed_maker(void)
{
    Kit     kit;
    int64_t half = 20000;
    int     state;
    pid_t   waiters[2];
    kit_open(&kit);
    write_chats(&kit, 40000, 0);
    EXPECT_OK(tokenize_dataset(&kit.job, &kit.report));
    uint64_t want = folder_hash(kit.report.dir);
    EXPECT_OK(file_remove_tree(kit.cache));
    const char *log = path_in(kit.dir, "log");
    kit.job.progress = stop_at;
    kit.job.context = &half;
    pid_t maker = tokenize_in_child(&kit, path_in(kit.dir, "maker.log"));
    EXPECT(waitpid(maker, &state, WUNTRACED) == maker && WIFSTOPPED(state));
    kit.job.progress = NULL;
    for (int i = 0; i < 2; i++) waiters[i] = tokenize_in_child(&kit, log);
    for (int i = 0; i < 600 && count_lines(log, "waiting for it") < 2; i++) usleep(50000);
    EXPECT_INT(count_lines(log, "another process is tokenizing into"), 2);
    for (int i = 0; i < 2; i++) EXPECT(waitpid(waiters[i], &state, WNOHANG) == 0);
    EXPECT(!is_there(path_in(kit.report.dir, "dataset.json")));
    kill(maker, SIGKILL);
    EXPECT(waitpid(maker, &state, 0) == maker && WIFSIGNALED(state));
    EXPECT_INT(count_makers(waiters, 2), 1);
    EXPECT(folder_hash(kit.report.dir) == want);
    kit_close(&kit);
}

static void flip_bit(const char *path)
{
    FILE *file = fopen(path, "r+b");
    EXPECT(file != NULL);
    if (!file) return;
    fseek(file, 128 + 40, SEEK_SET);
    int byte = fgetc(file);
    fseek(file, 128 + 40, SEEK_SET);
    fputc(byte ^ 1, file);
    fclose(file);
}

enum { MOST_SHARDS = 32 };

/* The time when each shard was written, in ns. Returns the number of shards. */
static int list_times(const char *dir, int64_t out[MOST_SHARDS])
{
    int count = 0;
    for (; count < MOST_SHARDS; count++) {
        char        path[4300];
        struct stat info;
        snprintf(path, sizeof path, "%s/shard-%05d.tokens", dir, count);
        if (stat(path, &info) != 0) break;
        out[count] = (int64_t)info.st_mtim.tv_sec * 1000000000 + info.st_mtim.tv_nsec;
    }
    return count;
}

/* Damaged shards are made again, even if a process is killed while it makes them. The other shards aren't written. */
static void only_the_damaged_shards_are_made_anew(void)
{
    static const int damaged[] = {2, 5, -1};
    Kit              kit;
    int64_t          before[MOST_SHARDS], after[MOST_SHARDS];
    kit_open(&kit);
    write_chats(&kit, 30000, 500);
    kit.dataset.skip_bad_rows = true;
    EXPECT_OK(tokenize_dataset(&kit.job, &kit.report));
    TokenizeReport first = kit.report;
    uint64_t       want = folder_hash(first.dir);
    int            count = list_times(first.dir, before), last = count - 1;
    for (int killed = 0; killed < 2; killed++) {
        for (int i = 0; i < 3; i++) {
            char path[4300];
            snprintf(path, sizeof path, "%s/shard-%05d.tokens", first.dir, damaged[i] < 0 ? last : damaged[i]);
            if (i == 1)
                EXPECT(unlink(path) == 0);
            else
                flip_bit(path);
        }
        if (killed) tokenize_killed_at(&kit, 0);
        EXPECT_OK(tokenize_dataset(&kit.job, &kit.report));
        EXPECT(!kit.report.was_cached && folder_hash(first.dir) == want);
        EXPECT_INT(list_times(first.dir, after), count);
        for (int i = 0; i < count; i++) EXPECT((before[i] == after[i]) == (i != 2 && i != 5 && i != last));
        memcpy(before, after, sizeof before);
        EXPECT_INT(kit.report.num_rows, 30000);
        EXPECT_INT(kit.report.num_tokens, first.num_tokens);
        EXPECT_INT(kit.report.num_bad_rows, 60);
    }
    EXPECT(!is_there(path_in(first.dir, "progress.json")));
    kit_close(&kit);
}

/* The counts that say which rows a shard holds may be damaged too. */
static void counts_that_cannot_be_right_are_made_anew(void)
{
    Kit   kit;
    Str   text;
    Arena arena = {0};
    kit_open(&kit);
    write_chats(&kit, 30000, 0);
    EXPECT_OK(tokenize_dataset(&kit.job, &kit.report));
    uint64_t    want = folder_hash(kit.report.dir);
    const char *path = path_in(kit.report.dir, "dataset.json");
    EXPECT_OK(file_read(&arena, path, 1 << 20, &text));
    EXPECT_OK(file_write_atomic(path, text.data, text.len / 2));
    EXPECT_OK(tokenize_dataset(&kit.job, &kit.report));
    EXPECT(!kit.report.was_cached && folder_hash(kit.report.dir) == want);
    char *digit = strstr((char *)(uintptr_t)text.data, "\"tokens\": ") + 10;
    *digit = *digit == '1' ? '2' : '1';
    EXPECT_OK(file_write_atomic(path, text.data, text.len));
    EXPECT_OK(tokenize_dataset(&kit.job, &kit.report));
    EXPECT(!kit.report.was_cached && folder_hash(kit.report.dir) == want);
    arena_deinit(&arena);
    kit_close(&kit);
}

/* Changes one bit of a token: its id is still valid. */
static void damaged_shards_are_made_anew(void)
{
    Kit  kit;
    char dir[4000];
    bool is_whole;
    kit_open(&kit);
    write_chats(&kit, 30000, 0);
    EXPECT_OK(tokenize_dataset(&kit.job, &kit.report));
    EXPECT_OK(tokenize_find(&kit.job, dir, sizeof dir, &is_whole));
    EXPECT(is_whole);
    EXPECT(is_there(path_in(dir, "shard-00001.tokens")));
    uint64_t want = folder_hash(dir);
    flip_bit(path_in(dir, "shard-00001.tokens"));
    EXPECT(folder_hash(dir) != want);
    EXPECT_OK(tokenize_find(&kit.job, dir, sizeof dir, &is_whole));
    EXPECT(!is_whole);
    EXPECT_OK(tokenize_dataset(&kit.job, &kit.report));
    EXPECT(!kit.report.was_cached && folder_hash(dir) == want);

    /* A verified dataset isn't verified again until a file is touched. */
    for (int i = 0; i < 50 && !is_there(path_in(dir, "verified.txt")); i++) {
        usleep(100000);
        EXPECT_OK(tokenize_dataset(&kit.job, &kit.report));
        EXPECT(kit.report.was_cached);
    }
    EXPECT(is_there(path_in(dir, "verified.txt")));
    EXPECT_OK(tokenize_dataset(&kit.job, &kit.report));
    EXPECT(kit.report.was_cached);
    flip_bit(path_in(dir, "shard-00000.tokens"));
    EXPECT_OK(tokenize_dataset(&kit.job, &kit.report));
    EXPECT(!kit.report.was_cached && folder_hash(dir) == want);

    /* A missing shard is made again. */
    EXPECT(unlink(path_in(dir, "shard-00001.tokens")) == 0);
    EXPECT_OK(tokenize_dataset(&kit.job, &kit.report));
    EXPECT(!kit.report.was_cached && folder_hash(dir) == want);
    kit_close(&kit);
}

static void a_killed_run_does_not_go_on_from_damage(void)
{
    Kit  kit;
    char dir[4000];
    bool is_whole;
    kit_open(&kit);
    write_chats(&kit, 40000, 0);
    EXPECT_OK(tokenize_dataset(&kit.job, &kit.report));
    uint64_t want = folder_hash(kit.report.dir);
    EXPECT_OK(file_remove_tree(kit.cache));
    tokenize_killed_at(&kit, 20000);
    EXPECT_OK(tokenize_find(&kit.job, dir, sizeof dir, &is_whole));
    EXPECT(!is_whole && is_there(path_in(dir, "progress.json")));
    flip_bit(path_in(dir, "shard-00000.tokens"));
    EXPECT_OK(tokenize_dataset(&kit.job, &kit.report));
    EXPECT(folder_hash(dir) == want);
    kit_close(&kit);
}

static void every_input_of_the_key_changes_it(void)
{
    Kit  kit;
    char dirs[12][4200];
    int  count = 0;
    bool is_whole;
    kit_open(&kit);
    write_chats(&kit, 100, 0);
#define NEXT_DIR() EXPECT_OK(tokenize_find(&kit.job, dirs[count++], sizeof dirs[0], &is_whole))
    NEXT_DIR();
    kit.dataset.train_on = TRAIN_ON_ALL;
    NEXT_DIR();
    kit.dataset.train_on = TRAIN_ON_ASSISTANT;
    kit.dataset.samples = 7;
    NEXT_DIR();
    kit.dataset.samples = 0;
    kit.dataset.system_prompt = "be kind";
    NEXT_DIR();
    kit.dataset.system_prompt = NULL;
    Template *tmpl = kit.tmpl;
    kit.job.tmpl = NULL;
    NEXT_DIR();
    kit.job.tmpl = tmpl;
    Tokenizer *other = byte_tokenizer("none");
    kit.job.tokenizer = other;
    NEXT_DIR();
    kit.job.tokenizer = kit.tokenizer;
    write_chats(&kit, 101, 0);
    NEXT_DIR();
    write_chats(&kit, 100, 0);
    static const char dated[] = "{{ strftime_now('%d %B') }}{% for m in messages %}[{{ m.role }}]{{ m.content }}<|end|>{% endfor %}";
    Template         *clock;
    EXPECT_OK(template_parse("dated", dated, strlen(dated), &clock));
    kit.job.tmpl = clock;
    for (int day = 1; day <= 2; day++) {
        template_stop_clock(clock, 86400 * day);
        NEXT_DIR();
    }
    kit.job.tmpl = tmpl;
    for (int i = 0; i < count; i++)
        for (int k = 0; k < i; k++) EXPECT(strcmp(dirs[i], dirs[k]) != 0);
    write_chats(&kit, 100, 0);
    NEXT_DIR();
    EXPECT_STR(dirs[count - 1], dirs[0]);
    template_stop_clock(tmpl, 86400); /* the template prints no time, so the clock doesn't matter */
    NEXT_DIR();
    EXPECT_STR(dirs[count - 1], dirs[0]);
    template_destroy(clock);
    tokenizer_destroy(other);
    kit_close(&kit);
}

static void bad_rows_stop_with_their_place(void)
{
    Kit kit;
    kit_open(&kit);
    write_chats(&kit, 3000, 1700);
    EXPECT_FAILS(tokenize_dataset(&kit.job, &kit.report), ERR_INVALID, "data.jsonl:1700:");
    EXPECT_OK(file_write_atomic(kit.data, "{\"messages\": 1}\n", 16));
    EXPECT_FAILS(tokenize_dataset(&kit.job, &kit.report), ERR_INVALID, "data.jsonl:1: want messages");
    EXPECT_OK(file_write_atomic(kit.data, "", 0));
    EXPECT_FAILS(tokenize_dataset(&kit.job, &kit.report), ERR_INVALID, "the dataset is empty");
    const char *none = "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}]}\n";
    EXPECT_OK(file_write_atomic(kit.data, none, strlen(none)));
    EXPECT_FAILS(tokenize_dataset(&kit.job, &kit.report), ERR_INVALID, "1 without a trained token");
    kit_close(&kit);
}

/* The empty text is the first: no memory has been allocated yet. */
static void an_empty_text_is_no_document(void)
{
    Kit               kit;
    static const char rows[] = "{\"text\": \"\"}\n{\"text\": \"hello\"}\n";
    kit_open(&kit);
    EXPECT_OK(file_write_atomic(kit.data, rows, strlen(rows)));
    EXPECT_OK(tokenize_dataset(&kit.job, &kit.report));
    EXPECT_INT(kit.report.num_documents, 1);
    kit_close(&kit);
}

static void long_texts_become_one_document(void)
{
    Kit kit;
    kit_open(&kit);
    size_t len = (size_t)TEXT_PART_BYTES + 5000;
    char  *text = malloc(len);
    for (size_t i = 0; i < len; i++) text[i] = i % 50 == 49 ? '\n' : (char)('a' + i % 7);
    snprintf(kit.data, sizeof kit.data, "%s/long.txt", kit.dir);
    EXPECT_OK(file_write_atomic(kit.data, text, len));
    EXPECT_OK(tokenize_dataset(&kit.job, &kit.report));
    EXPECT_INT(kit.report.num_documents, 1);
    EXPECT_INT(kit.report.num_tokens, (int64_t)len + 1);
    ShardSet set;
    EXPECT_OK(shard_set_open(kit.report.dir, &set));
    int32_t ids[3];
    EXPECT_OK(shard_read(set.shards[0], (int64_t)len - 2, 3, ids));
    EXPECT_INT(ids[1], text[len - 1]);
    EXPECT_INT(ids[2], 256);
    shard_set_close(&set);
    free(text);
    kit_close(&kit);
}

/* Counts the rows that inspect shows, and their BOS tokens. */
static bool count_bos(void *context, const InspectRow *row)
{
    int64_t *seen = context; /* parts, BOS, the last row's number */
    seen[0]++;
    for (size_t i = 0; i < row->count; i++) seen[1] += row->ids[i] == 256;
    seen[2] = row->row;
    return true;
}

/* A text above 16 MiB is tokenized in parts. Neither `samples` nor `inspect` counts the parts as documents. */
static void parts_of_texts_are_no_samples(void)
{
    Kit kit;
    kit_open(&kit);
    size_t len = (size_t)TEXT_PART_BYTES + 5000;
    char  *text = malloc(len);
    memset(text, 'a', len);
    for (size_t i = 50; i < len; i += 50) text[i] = '\n';
    EXPECT_OK(file_make_dirs(path_in(kit.dir, "texts")));
    EXPECT_OK(file_write_atomic(path_in(kit.dir, "texts/a.txt"), text, len));
    EXPECT_OK(file_write_atomic(path_in(kit.dir, "texts/b.txt"), "second", 6));
    EXPECT_OK(file_write_atomic(path_in(kit.dir, "texts/c.txt"), "third", 5));
    snprintf(kit.data, sizeof kit.data, "%s/texts", kit.dir);
    kit.dataset.samples = 2;
    EXPECT_OK(tokenize_dataset(&kit.job, &kit.report));
    EXPECT_INT(kit.report.num_documents, 2);
    EXPECT_INT(kit.report.num_tokens, (int64_t)len + 1 + 7);
    Tokenizer *with_bos = byte_tokenizer("<|end|>\", \"bos_token\": \"<|end|>\", \"add_bos_token\": true, \"x\": \"");
    int64_t    seen[3] = {0};
    kit.job.tokenizer = with_bos;
    InspectSummary summary;
    EXPECT_OK(inspect_dataset(&kit.job, 0, (InspectPacking){.seq_len = 100, .is_padded = true}, count_bos, seen, &summary));
    EXPECT_INT(seen[0], 3);
    EXPECT_INT(seen[1], 4); /* BOS and EOS of two texts */
    EXPECT_INT(seen[2], 1);
    EXPECT_INT(summary.num_rows, 2);
    EXPECT_INT(summary.longest, (int64_t)len + 2);
    EXPECT_INT(summary.num_tokens, (int64_t)len + 2 + 8);
    EXPECT_INT(summary.num_trained, (int64_t)len + 1 + 7);
    EXPECT_INT(summary.packed_rows, ((int64_t)len + 2 + 99) / 100 + 1);
    tokenizer_destroy(with_bos);
    free(text);
    kit_close(&kit);
}

static bool check_row(void *context, const InspectRow *row)
{
    int *seen = context;
    EXPECT_INT(row->row, *seen);
    EXPECT_INT(row->line, *seen + 1);
    EXPECT(row->count > 0 && row->num_trained > 0);
    return ++*seen < 20;
}

static void inspecting_adds_up(void)
{
    Kit            kit;
    InspectSummary summary;
    int            seen = 0;
    kit_open(&kit);
    write_chats(&kit, 500, 0);
    EXPECT_OK(inspect_dataset(&kit.job, 0, (InspectPacking){.seq_len = 256}, check_row, &seen, &summary));
    EXPECT_INT(summary.num_rows, 20);
    EXPECT_OK(inspect_dataset(&kit.job, 0, (InspectPacking){.seq_len = 256}, NULL, NULL, &summary));
    EXPECT_OK(tokenize_dataset(&kit.job, &kit.report));
    EXPECT_INT(summary.num_tokens, kit.report.num_tokens);
    EXPECT_INT(summary.num_trained, kit.report.num_trained);
    EXPECT(summary.packing_efficiency > 0.9 && summary.packing_efficiency <= 1);
    int64_t sum = 0;
    for (int i = 0; i < INSPECT_BUCKETS; i++) sum += summary.histogram[i];
    EXPECT_INT(sum, 500);
    kit_close(&kit);
}

/* The rows taken from a dataset of ten rows, as digits; if none is taken, the error's message. */
static const char *rows_taken(const char *const *paths, int count, const char *split, int64_t samples)
{
    static char    digits[STATUS_MESSAGE_BYTES];
    DatasetOptions dataset = {.path = "ten", .split = split, .samples = samples};
    Reader        *reader;
    Record         record;
    int64_t        most;
    bool           has;
    int            num = 0;
    if (dataset_reader_open(&dataset, (char *const *)paths, count, &reader, &most) != OK) return status_message();
    while ((most == 0 || num < most) && reader_next(reader, &record, &has) == OK && has) digits[num++] = record.bytes.data[6];
    digits[num] = 0;
    reader_close(reader);
    return digits;
}

/* Slices as in the `datasets` library: percentages are rounded to the nearest row, halves to even. */
static void slices_choose_rows(void)
{
    static const char *const cases[][2] = {
        {"train", "0123456789"},
        {"train[:]", "0123456789"},
        {"train[:3]", "012"},
        {"train[7:]", "789"},
        {"train[2:4]", "23"},
        {"train[-3:]", "789"},
        {"train[:-3]", "0123456"},
        {"train[-20:2]", "01"},
        {"train[8:99]", "89"},
        {"train[:20%]", "01"},
        {"train[:15%]", "01"},
        {"train[:25%]", "01"},
        {"train[:35%]", "0123"},
        {"train[90%:]", "9"},
        {"train[-10%:]", "9"},
        {"train[10%:-60%]", "123"},
        {"test[:1]", "0"},
        {"train[5:5]", "no row of"},
        {"train[99:]", "only 10"},
        {"train[-99%:0]", "expected a name"},
        {"train[:101%]", "expected"},
        {"train[:x]", "expected"},
        {"train[1]", "expected"},
        {"train[:1", "expected"},
        {"train[:1]+test", "expected"},
        {"train[10:20%]", "expected"},
        {"train(closest)", "expected"},
        {"train[:0%]", "no row of"},
    };
    const char *dir = scratch_dir(), *a = path_in(dir, "a.jsonl"), *b = path_in(dir, "b.csv");
    const char *paths[] = {a, b};
    EXPECT_OK(file_write_atomic(a, "{\"a\": 0}\n{\"a\": 1}\n{\"a\": 2}\n\n{\"a\": 3}\n", 37));
    EXPECT_OK(file_write_atomic(b, "a\n      4\n      5\n      6\n      7\n      8\n      9\n", 50));
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) EXPECT_CONTAINS(rows_taken(paths, 2, cases[i][0], 0), cases[i][1]);
    EXPECT_STR(rows_taken(paths, 2, "train[2:8]", 3), "234");
    EXPECT_STR(rows_taken(paths, 2, "train[2:4]", 5), "23");
    EXPECT_STR(rows_taken(paths, 2, NULL, 2), "01");
    EXPECT_OK(file_remove_tree(dir));
}

/* The same rows of a slice reach the shards and `inspect`. */
static void a_slice_is_what_is_tokenized(void)
{
    Kit            kit;
    InspectSummary summary;
    kit_open(&kit);
    write_chats(&kit, 50, 0);
    kit.dataset.split = "train[10%:50%]";
    EXPECT_OK(tokenize_dataset(&kit.job, &kit.report));
    EXPECT_INT(kit.report.num_documents, 20);
    EXPECT_OK(inspect_dataset(&kit.job, 0, (InspectPacking){0}, NULL, NULL, &summary));
    EXPECT_INT(summary.num_rows, 20);
    EXPECT_INT(summary.num_tokens, kit.report.num_tokens);
    kit_close(&kit);
}

/* Unread fields are named when they are first met, with any number of threads, and again when the dataset comes from the cache. */
static void unread_fields_are_kept(void)
{
    static const char row[] = "{\"id\": 1, \"messages\": [{\"role\": \"user\", \"content\": \"a\", \"at\": 5}, {\"role\": \"assistant\", "
                              "\"content\": \"b\"}], \"rank\": 2}\n";
    Kit               kit;
    StrBuf            names = {0}, text = {0};
    kit_open(&kit);
    for (int i = 0; i < 20; i++) strbuf_puts(&text, row);
    for (int i = 0; i < 30; i++) strbuf_printf(&text, "{\"field%d\": 1, %s", i, row + 1);
    EXPECT_OK(file_write_atomic(kit.data, text.data, text.len));
    for (int i = 0; i < 2; i++) {
        InspectSummary summary;
        EXPECT_OK(tokenize_dataset(&kit.job, &kit.report));
        EXPECT_INT(kit.report.was_cached, i);
        EXPECT_INT(kit.report.unused.count, FIELD_SET_MAX);
        strbuf_clear(&names);
        field_set_put(&kit.report.unused, &names);
        EXPECT(strncmp(names.data, "messages[].at, id, rank, field0, field1, ", 41) == 0);
        EXPECT_CONTAINS(names.data, "field20 and more");
        EXPECT_OK(inspect_dataset(&kit.job, 0, (InspectPacking){0}, NULL, NULL, &summary));
        EXPECT(memcmp(&summary.unused, &kit.report.unused, sizeof(int) + 1) == 0);
    }
    strbuf_deinit(&names);
    strbuf_deinit(&text);
    kit_close(&kit);
}

static int64_t peak_bytes(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (int64_t)usage.ru_maxrss << 10;
}

/* Bad rows before the first good one leave no memory behind. */
static void bad_rows_leave_no_memory(void)
{
    enum { ROWS = 20000, ROW_BYTES = 8000 };
    if (TEST_IS_WATCHED) SKIP("the sanitizer's own memory has no bound");
    Kit    kit;
    StrBuf text = {0};
    kit_open(&kit);
    FILE *file = fopen(kit.data, "w");
    for (int i = 0; i < ROW_BYTES; i++) strbuf_putc(&text, 'x');
    for (int i = 0; i < ROWS; i++) fprintf(file, "{\"nothing\": \"%s\"}\n", text.data);
    fprintf(file, "{\"text\": \"good\"}\n");
    fclose(file);
    kit.dataset.skip_bad_rows = true;
    int64_t before = peak_bytes();
    EXPECT_OK(tokenize_dataset(&kit.job, &kit.report));
    EXPECT_INT(kit.report.num_bad_rows, ROWS);
    EXPECT(peak_bytes() - before < (int64_t)ROWS * ROW_BYTES / 2);
    strbuf_deinit(&text);
    kit_close(&kit);
}

TEST_MAIN(TEST(bad_rows_leave_no_memory), TEST(slices_choose_rows), TEST(a_slice_is_what_is_tokenized), TEST(unread_fields_are_kept),
          TEST(threads_change_no_byte), TEST(killed_runs_end_with_equal_bytes), TEST(processes_that_share_a_cache_make_it_once),
          TEST(those_that_wait_go_on_for_a_killed_maker), TEST(damaged_shards_are_made_anew), TEST(only_the_damaged_shards_are_made_anew),
          TEST(counts_that_cannot_be_right_are_made_anew), TEST(a_killed_run_does_not_go_on_from_damage),
          TEST(every_input_of_the_key_changes_it), TEST(bad_rows_stop_with_their_place), TEST(an_empty_text_is_no_document),
          TEST(long_texts_become_one_document), TEST(parts_of_texts_are_no_samples), TEST(inspecting_adds_up))
