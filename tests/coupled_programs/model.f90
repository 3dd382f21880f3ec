! One process of an MPI program, as model.c, with its memory in Fortran's order: model PROGRAM GIVES TAKES STEPS
program model
  use exoskel
  use mpi
  implicit none
  integer(c_int64_t), parameter :: shape(2) = [24, 36]
  integer :: error, provided, rank, size, steps, step
  integer(c_int64_t) :: cells(2), first(2), length(2), begin, owned, row, column
  integer :: wrong, all_wrong
  type(c_ptr) :: me, given, taken
  real(c_double), pointer :: mine(:, :), theirs(:, :)
  real(c_double) :: gives, takes
  character(32) :: name, word

  call get_command_argument(1, name)
  call get_command_argument(2, word); read (word, *) gives
  call get_command_argument(3, word); read (word, *) takes
  call get_command_argument(4, word); read (word, *) steps
  call MPI_Init_thread(MPI_THREAD_SINGLE, provided, error)
  call MPI_Comm_rank(MPI_COMM_WORLD, rank, error)
  call MPI_Comm_size(MPI_COMM_WORLD, size, error)
  call check(exoskel_attach(trim(name) // c_null_char, size, rank, me))
  call check(exoskel_array_of(me, "given" // c_null_char, exoskel_float64, exoskel_order_fortran, 2, shape, &
      "block,block" // c_null_char, c_null_ptr, c_null_ptr, given))
  call check(exoskel_array_of(me, "taken" // c_null_char, exoskel_float64, exoskel_order_fortran, 2, shape, &
      "*,block" // c_null_char, c_null_ptr, c_null_ptr, taken))
  call check(exoskel_extent(given, 0, first(1), length(1)))
  call check(exoskel_extent(given, 1, first(2), length(2)))
  call check(exoskel_local_shape(taken, cells))
  call check(exoskel_extent(taken, 1, begin, owned))
  do step = 1, steps
    call c_f_pointer(exoskel_write(given), mine, length)
    do column = 1, length(2)
      do row = 1, length(1)
        mine(row, column) = gives + 1000 * step + 36 * (first(1) + row - 1) + first(2) + column - 1
      end do
    end do
    call check(exoskel_done(given))
    call c_f_pointer(exoskel_read(taken), theirs, cells)
    wrong = 0
    do column = 1, owned
      do row = 1, shape(1)
        if (theirs(row, column) /= takes + 1000 * step + 36 * (row - 1) + begin + column - 1) wrong = wrong + 1
      end do
    end do
    call check(exoskel_done(taken))
    call MPI_Allreduce(wrong, all_wrong, 1, MPI_INTEGER, MPI_SUM, MPI_COMM_WORLD, error)
    if (all_wrong /= 0) call MPI_Abort(MPI_COMM_WORLD, 3, error)
  end do
  call check(exoskel_leave(me, c_null_ptr))
  if (rank == 0) print "(i0, a, i0, a)", steps, " steps on ", size, " processes"
  call MPI_Finalize(error)

contains
  subroutine check(code)
    integer(c_int), intent(in) :: code
    if (code /= 0) call MPI_Abort(MPI_COMM_WORLD, 1, error)
  end subroutine
end program
