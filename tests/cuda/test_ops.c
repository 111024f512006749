/* Every CUDA kernel against the CPU: `surogate doctor` as a test.
 *
 *   test_cuda ops [op] */
#include "measure/doctor.h"
#include "test.h"

int main(int argc, char **argv)
{
    static char  text[2048];
    Device      *cuda, *cpu;
    DoctorCounts counts = {0};
    if (device_cuda_create(0, &cuda) != OK) {
        printf("%s\n0 passed, 0 failed, 1 skipped\n", status_message());
        return 0;
    }
    device_cuda_describe(cuda, text, sizeof text);
    printf("%s\n", text);
    if (device_cpu_create(0, &cpu) != OK) return 1;
    Status status = doctor_check_ops(cuda, cpu, argc > 1 ? argv[1] : NULL, stdout, &counts);
    if (status == OK && argc == 1) status = doctor_measure(cuda, stdout);
    if (status != OK) printf("FAILED %s\n", status_message());
    printf("%d passed, %d failed, 0 skipped\n", counts.passed, counts.failed + (status != OK));
    return counts.failed || status != OK || !counts.passed;
}
