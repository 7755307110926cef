/* The main of test programs that have none: unit_table [test_limiter.c]. */
#include "tests/support/test.h"

int main(int argc, char **argv)
{
    return test_run_file(argc > 1 ? argv[1] : NULL, NULL, NULL);
}
