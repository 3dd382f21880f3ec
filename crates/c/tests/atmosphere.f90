! One process of the atmosphere, in Fortran order: atmosphere RANK SIZE STEPS
program atmosphere
  use exoskel
  implicit none
  integer(c_int) :: rank, size, steps, step
  integer(c_int64_t) :: shape(2), cells(2), first, count, row, column
  type(c_ptr) :: me, sst, heat, mesh
  integer(c_int64_t), target :: mine(12)
  integer(c_int64_t), pointer :: values(:)
  real(c_double), pointer :: surface(:, :)
  real(c_float), pointer :: warmth(:)
  character(32) :: word

  call get_command_argument(1, word); read (word, *) rank
  call get_command_argument(2, word); read (word, *) size
  call get_command_argument(3, word); read (word, *) steps
  shape = [16, 24]
  if (exoskel_attach("atmosphere" // c_null_char, size, rank, me) /= 0) stop 1
  if (exoskel_array_of(me, "sst" // c_null_char, exoskel_float64, exoskel_order_fortran, 2, shape, &
      "*,block" // c_null_char, c_null_ptr, c_null_ptr, sst) /= 0) stop 2
  if (exoskel_array_of(me, "heat" // c_null_char, exoskel_float32, exoskel_order_fortran, 1, shape, &
      "block" // c_null_char, c_null_ptr, c_null_ptr, heat) /= 0) stop 3
  ! Both list the cells 8 to 11; they count from 0.
  mine = [(8 * rank + 12 - row, row = 1, 12)]
  if (exoskel_array_indices(me, "mesh" // c_null_char, exoskel_int64, exoskel_order_fortran, 1, [20_c_int64_t], &
      "indices" // c_null_char, c_null_ptr, [12_c_int64_t], [c_loc(mine)], c_null_ptr, mesh) /= 0) stop 10
  if (exoskel_local_shape(sst, cells) /= 0) stop 4
  if (exoskel_extent(sst, 1, first, count) /= 0) stop 5
  do step = 0, steps - 1
    call c_f_pointer(exoskel_read(sst), surface, cells)
    do column = 1, cells(2)
      do row = 1, cells(1)
        if (surface(row, column) /= 1000 * step + 24 * (row - 1) + first + column - 1) stop 6
      end do
    end do
    if (exoskel_done(sst) /= 0) stop 7
    call c_f_pointer(exoskel_read(mesh), values, [12])
    if (any(values /= 100 * step + mine)) stop 11
    if (exoskel_done(mesh) /= 0) stop 12
    call c_f_pointer(exoskel_write(heat), warmth, [16 / size])
    warmth = real(step)
    if (exoskel_done(heat) /= 0) stop 8
  end do
  if (exoskel_leave(me, c_null_ptr) /= 0) stop 9
end program
