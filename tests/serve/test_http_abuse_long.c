/* Each abuse as long as a server must endure it. */
#include "http_abuse.h"

int main(int argc, char **argv)
{
    static const TestCase cases[] = {ABUSE_TESTS};
    abuse_counts = (AbuseCounts){.malformed = 20000, .slow = 500, .gigabytes = 16, .requests = 100000};
    return test_run(cases, (int)(sizeof cases / sizeof cases[0]), argc, argv);
}
