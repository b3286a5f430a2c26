module {
  func.func @main(%arg0: tensor<1x?x8xf32, #dhlo.shape<["1", "t", "8"]>>, %arg1: tensor<1x?x6xf32, #dhlo.shape<["1", "t", "6"]>>, %arg2: tensor<5x112xf32>, %arg3: tensor<?x8xf32, #dhlo.shape<["t", "8"]>>, %arg4: tensor<?x8xf32, #dhlo.shape<["t", "8"]>>, %arg5: tensor<5x64xf32>, %arg6: tensor<?xi32, #dhlo.shape<["t"]>>) -> (tensor<1x?x6xf32, #dhlo.shape<["1", "t", "6"]>>, tensor<?x8xf32, #dhlo.shape<["t", "8"]>>) {
    %0 = "dhlo.full"() {value = "0"} : () -> tensor<?xi32, #dhlo.shape<["t"]>>
    %1 = "dhlo.ge"(%arg6, %0) : (tensor<?xi32, #dhlo.shape<["t"]>>, tensor<?xi32, #dhlo.shape<["t"]>>) -> tensor<?xi1, #dhlo.shape<["t"]>>
    %2 = "dhlo.low_rank"(%arg0, %arg2, %arg6) {at = [0, 48], columns = [4, 2], rank = 4 : i64} : (tensor<1x?x8xf32, #dhlo.shape<["1", "t", "8"]>>, tensor<5x112xf32>, tensor<?xi32, #dhlo.shape<["t"]>>) -> tensor<1x?x6xf32, #dhlo.shape<["1", "t", "6"]>>
    %3 = "dhlo.chosen_rows"(%2, %1) : (tensor<1x?x6xf32, #dhlo.shape<["1", "t", "6"]>>, tensor<?xi1, #dhlo.shape<["t"]>>) -> tensor<1x?x6xf32, #dhlo.shape<["1", "t", "6"]>>
    %4 = "dhlo.add"(%arg1, %3) : (tensor<1x?x6xf32, #dhlo.shape<["1", "t", "6"]>>, tensor<1x?x6xf32, #dhlo.shape<["1", "t", "6"]>>) -> tensor<1x?x6xf32, #dhlo.shape<["1", "t", "6"]>>
    %5 = "dhlo.low_rank"(%arg3, %arg5, %arg6) {at = [0], columns = [8], rank = 4 : i64} : (tensor<?x8xf32, #dhlo.shape<["t", "8"]>>, tensor<5x64xf32>, tensor<?xi32, #dhlo.shape<["t"]>>) -> tensor<?x8xf32, #dhlo.shape<["t", "8"]>>
    %6 = "dhlo.chosen_rows"(%5, %1) : (tensor<?x8xf32, #dhlo.shape<["t", "8"]>>, tensor<?xi1, #dhlo.shape<["t"]>>) -> tensor<?x8xf32, #dhlo.shape<["t", "8"]>>
    %7 = "dhlo.add"(%arg4, %6) : (tensor<?x8xf32, #dhlo.shape<["t", "8"]>>, tensor<?x8xf32, #dhlo.shape<["t", "8"]>>) -> tensor<?x8xf32, #dhlo.shape<["t", "8"]>>
    return %4, %7 : tensor<1x?x6xf32, #dhlo.shape<["1", "t", "6"]>>, tensor<?x8xf32, #dhlo.shape<["t", "8"]>>
  }
}
