/* Enters a ring without submitting, by an instruction that cannot be replaced. Below a filter that kills, this must be found
 * out before the program runs. Without an argument it makes no call. */
#include <stdio.h>

long enter(long fd);
__asm__(".text\n.globl enter\nenter: xor %esi, %esi\nxor %edx, %edx\nxor %r10d, %r10d\nmov $426, %eax\npush %r8\npop %r8\nsyscall\nret\n");

int main(int count, char **arguments)
{
	(void)arguments;
	printf("%ld\n", count > 1 ? enter(-1) : 0);
	return 0;
}
