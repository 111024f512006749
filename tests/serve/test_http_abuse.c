/* A short version of each abuse. */
#include "http_abuse.h"

int main(int argc, char **argv)
{
    static const TestCase cases[] = {ABUSE_TESTS};
    abuse_counts = (AbuseCounts){.malformed = 1000, .slow = 100, .gigabytes = 2, .requests = 2000};
    return test_run(cases, (int)(sizeof cases / sizeof cases[0]), argc, argv);
}
