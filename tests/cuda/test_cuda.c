/* The tests that need a GPU, all in turn or one of them:
 *
 *   test_cuda [ops [OP] | families | cache | dtypes | copy | rounding | codes | chains | collectives | pages | head_decoder |
 *              decoder | json_guide | row_adapters | greedy | half | head_ranks]
 *
 * Each part runs as a process of its own: an error on a GPU ends all work of its process. */
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

int test_ops_main(int argc, char **argv);
int test_families_main(int argc, char **argv);
int test_cache_main(int argc, char **argv);
int test_dtypes_main(int argc, char **argv);
int test_copy_main(int argc, char **argv);
int test_precision_main(int argc, char **argv);
int test_rounding_main(int argc, char **argv);
int test_codes_main(int argc, char **argv);
int test_chains_main(int argc, char **argv);
int test_head_decoder_main(int argc, char **argv);
int test_decoder_main(int argc, char **argv);
int test_json_guide_main(int argc, char **argv);
int test_row_adapters_main(int argc, char **argv);
int test_greedy_main(int argc, char **argv);
int test_half_main(int argc, char **argv);
int test_head_ranks_main(int argc, char **argv);
int test_collectives_main(int argc, char **argv);
int test_pages_main(int argc, char **argv);

static const struct {
    const char *name;
    int (*run)(int argc, char **argv);
} parts[] = {{"ops", test_ops_main},
             {"families", test_families_main},
             {"cache", test_cache_main},
             {"dtypes", test_dtypes_main},
             {"copy", test_copy_main},
             {"precision", test_precision_main},
             {"rounding", test_rounding_main},
             {"codes", test_codes_main},
             {"chains", test_chains_main},
             {"collectives", test_collectives_main},
             {"pages", test_pages_main},
             {"head_decoder", test_head_decoder_main},
             {"decoder", test_decoder_main},
             {"json_guide", test_json_guide_main},
             {"row_adapters", test_row_adapters_main},
             {"greedy", test_greedy_main},
             {"half", test_half_main},
             {"head_ranks", test_head_ranks_main}};
enum { NUM_PARTS = sizeof parts / sizeof parts[0] };

/* Runs one part, prints its output and adds up the counts of its last line. */
static void run_part(const char *self, const char *name, int counts[3])
{
    char command[4096], line[4096];
    int  passed, failed, skipped, seen = 0;
    snprintf(command, sizeof command, "'%s' %s 2>&1", self, name);
    FILE *pipe = popen(command, "r");
    while (pipe && fgets(line, sizeof line, pipe)) {
        if (sscanf(line, "%d passed, %d failed, %d skipped", &passed, &failed, &skipped) == 3) {
            counts[0] += passed, counts[1] += failed, counts[2] += skipped;
            seen = 1;
        }
        printf("%s", line);
    }
    int status = pipe ? pclose(pipe) : -1;
    if (!seen || !WIFEXITED(status)) counts[1]++;
    fflush(stdout);
}

int main(int argc, char **argv)
{
    char    self[2048];
    int     counts[3] = {0};
    ssize_t len = readlink("/proc/self/exe", self, sizeof self - 1);
    self[len > 0 ? len : 0] = 0;
    for (int i = 0; i < NUM_PARTS && argc > 1; i++)
        if (strcmp(argv[1], parts[i].name) == 0) return parts[i].run(argc - 1, argv + 1);
    if (argc > 1) {
        fprintf(stderr, "usage: test_cuda [ops [OP]");
        for (int i = 1; i < NUM_PARTS; i++) fprintf(stderr, " | %s", parts[i].name);
        fprintf(stderr, "]\n");
        return 2;
    }
    for (int i = 0; i < NUM_PARTS; i++) run_part(self, parts[i].name, counts);
    printf("%d passed, %d failed, %d skipped\n", counts[0], counts[1], counts[2]);
    return counts[1] > 0;
}
