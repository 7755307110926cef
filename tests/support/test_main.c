/* The main of test programs that have none. */
#include "tests/support/test.h"

int main(void)
{
    return test_run(NULL, NULL);
}
