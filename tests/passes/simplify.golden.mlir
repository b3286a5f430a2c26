module {
  func.func @main(%arg0: tensor<?x?xf32, #dhlo.shape<["n", "m"]>>, %arg1: tensor<?xf32, #dhlo.shape<["m"]>>, %arg2: tensor<?xi64, #dhlo.shape<["n"]>>) -> (tensor<?x?xf32, #dhlo.shape<["n", "m"]>>, tensor<?x?xf32, #dhlo.shape<["n", "m"]>>, tensor<?x?xf32, #dhlo.shape<["n", "m"]>>, tensor<?x?xf32, #dhlo.shape<["n", "m"]>>, tensor<?xi64, #dhlo.shape<["n"]>>, tensor<?xi1, #dhlo.shape<["n"]>>, tensor<?x?xf32, #dhlo.shape<["n", "m"]>>, tensor<?x?xf32, #dhlo.shape<["n", "m"]>>, tensor<f32>, tensor<?x?xf32, #dhlo.shape<["n", "m"]>>) {
    %0 = "dhlo.broadcast"(%arg1) {dims = [1]} : (tensor<?xf32, #dhlo.shape<["m"]>>) -> tensor<?x?xf32, #dhlo.shape<["n", "m"]>>
    %1 = "dhlo.full"() {value = "true"} : () -> tensor<?xi1, #dhlo.shape<["n"]>>
    %2 = "dhlo.full"() {value = "2.0"} : () -> tensor<?x?xf32, #dhlo.shape<["n", "m"]>>
    %3 = "dhlo.full"() {value = "1"} : () -> tensor<f32>
    %4 = "dhlo.full"() {value = "2.0"} : () -> tensor<?x?xf32, #dhlo.shape<["n", "m"]>>
    %5 = "dhlo.mul"(%arg0, %4) : (tensor<?x?xf32, #dhlo.shape<["n", "m"]>>, tensor<?x?xf32, #dhlo.shape<["n", "m"]>>) -> tensor<?x?xf32, #dhlo.shape<["n", "m"]>>
    %6 = "dhlo.sigmoid"(%5) : (tensor<?x?xf32, #dhlo.shape<["n", "m"]>>) -> tensor<?x?xf32, #dhlo.shape<["n", "m"]>>
    %7 = "dhlo.mul"(%6, %4) : (tensor<?x?xf32, #dhlo.shape<["n", "m"]>>, tensor<?x?xf32, #dhlo.shape<["n", "m"]>>) -> tensor<?x?xf32, #dhlo.shape<["n", "m"]>>
    return %arg0, %arg0, %0, %arg0, %arg2, %1, %arg0, %2, %3, %7 : tensor<?x?xf32, #dhlo.shape<["n", "m"]>>, tensor<?x?xf32, #dhlo.shape<["n", "m"]>>, tensor<?x?xf32, #dhlo.shape<["n", "m"]>>, tensor<?x?xf32, #dhlo.shape<["n", "m"]>>, tensor<?xi64, #dhlo.shape<["n"]>>, tensor<?xi1, #dhlo.shape<["n"]>>, tensor<?x?xf32, #dhlo.shape<["n", "m"]>>, tensor<?x?xf32, #dhlo.shape<["n", "m"]>>, tensor<f32>, tensor<?x?xf32, #dhlo.shape<["n", "m"]>>
  }
}
